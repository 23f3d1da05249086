#!/usr/bin/env bash
# Makes .tools/seeds-python, the Python environment of `make seeds-test`: torch, transformers and optimum.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$TOOLS/seeds-python requirements=$ROOT/tests/seeds/requirements.txt
stamp=$target/requirements.txt quiet=()
if cmp --silent "$requirements" "$stamp"; then
    say "the Python environment of seeds-test is there: ${target#"$ROOT"/}"
    exit
fi
say "making ${target#"$ROOT"/} (about 5 GB: torch comes with its libraries for GPUs)"
rm -rf "$target"
mkdir -p "$TOOLS"
python3 -m venv "$target" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
[[ -t 1 ]] || quiet=(--quiet)
if ! "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --requirement "$requirements"; then
    rm -rf "$target"
    fail "cannot install tests/seeds/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
fi
cp "$requirements" "$stamp"
