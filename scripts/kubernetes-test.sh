#!/usr/bin/env bash
# Renders deploy/kubernetes and checks the output, with its own Python environment in .tools/kubernetes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/kubernetes
REQUIREMENTS=$ROOT/tests/kubernetes/requirements.txt

if ! cmp --silent "$REQUIREMENTS" "$TARGET/requirements.txt"; then
    say "installing what checks Kubernetes manifests (about 5 MB)"
    rm -rf "$TARGET"
    mkdir -p "$TOOLS"
    python3 -m venv "$TARGET" >/dev/null
    "$TARGET/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: --requirement "$REQUIREMENTS" ||
        fail "cannot install ${REQUIREMENTS#"$ROOT"/}: see pip's message above; check the network and pip's configuration, then run this again"
    cp "$REQUIREMENTS" "$TARGET/requirements.txt"
fi
"$TARGET/bin/python" "$ROOT/tests/kubernetes/manifests_test.py"
