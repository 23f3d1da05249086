#!/usr/bin/env bash
# Renders deploy/kubernetes and checks the output, with its own Python environment in .tools/kubernetes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/kubernetes
REQUIREMENTS=$ROOT/tests/kubernetes/requirements.txt

environment "$TARGET" "$REQUIREMENTS" "80 MB" --only-binary=:all: ||
    fail "cannot install ${REQUIREMENTS#"$ROOT"/}: see pip's message above; check the network and pip's configuration, then run this again"
"$TARGET/bin/python" "$ROOT/tests/kubernetes/manifests_test.py"
