#!/usr/bin/env bash
# Makes .tools/verify-python, the Python environment of `make verify-test`: torch and the libraries whose folders are served.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$TOOLS/verify-python requirements=$ROOT/tests/verify/requirements.txt
stamp=$target/requirements.txt quiet=()
if cmp --silent "$requirements" "$stamp"; then
    say "the Python environment of verify-test is there: ${target#"$ROOT"/}"
    exit
fi
say "making ${target#"$ROOT"/} (about 4 GB: torch comes with its libraries for GPUs)"
rm -rf "$target"
mkdir -p "$TOOLS"
python3 -m venv "$target" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
[[ -t 1 ]] || quiet=(--quiet)
if ! "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --requirement "$requirements"; then
    rm -rf "$target"
    fail "cannot install tests/verify/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
fi
cp "$requirements" "$stamp"
