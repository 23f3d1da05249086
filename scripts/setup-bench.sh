#!/usr/bin/env bash
# Makes .tools/bench-python, the Python environment of `make bench`.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/bench-python
REQUIREMENTS=$ROOT/bench/requirements.txt
STAMP=$TARGET/requirements.txt

if cmp --silent "$REQUIREMENTS" "$STAMP"; then
    say "the benchmark's Python environment is there: ${TARGET#"$ROOT"/}"
    exit 0
fi
say "making the benchmark's Python environment (about 80 MB)"
rm -rf "$TARGET"
mkdir -p "$TOOLS"
python3 -m venv "$TARGET" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
"$TARGET/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --only-binary=:all: --requirement "$REQUIREMENTS" ||
    fail "cannot install ${REQUIREMENTS#"$ROOT"/}: see pip's message above; check the network and pip's configuration, then run this again"
cp "$REQUIREMENTS" "$STAMP"
say "the benchmark's Python environment: ${TARGET#"$ROOT"/}"
