#!/usr/bin/env bash
# Serves models from a server with S3's interface, which runs here (moto).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$TOOLS/s3-python requirements=$ROOT/tests/installed/requirements-s3.txt
if ! cmp --silent "$requirements" "$target/requirements.txt"; then
    say "making ${target#"$ROOT"/}"
    rm -rf "$target"
    mkdir -p "$TOOLS"
    python3 -m venv "$target" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    "$target/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" || {
        rm -rf "$target"
        fail "cannot install tests/installed/requirements-s3.txt: see pip's message above; check the network and pip's configuration, then run this again"
    }
    cp "$requirements" "$target/requirements.txt"
fi
"$target/bin/python" "$ROOT/tests/installed/s3_test.py" "$@"
