#!/usr/bin/env bash
# Makes .tools/python, the Python environment in which the tests run the official tritonclient and compute references.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/python
PYTHON=$TARGET/bin/python
REQUIREMENTS=$ROOT/tests/clients/requirements.txt
STAMP=$TARGET/requirements.txt

imports() {
    "$PYTHON" -c 'import numpy, onnxruntime, opentelemetry.proto, tokenizers, tritonclient.grpc.aio, tritonclient.http' 2>&1
}

if cmp --silent "$REQUIREMENTS" "$STAMP" && imports >/dev/null; then
    say "the tests' Python environment is there: ${TARGET#"$ROOT"/}"
    exit 0
fi

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$(python3 --version) is too old: the pinned packages need Python 3.11 or newer"
if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    say "making a Python environment"
    empty_environment "$TARGET"
fi

say "installing tritonclient, onnxruntime, tokenizers and numpy (about 60 MB)"
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
# The list is complete, so pip resolves nothing and installs nothing that is not in it.
"$PYTHON" -m pip install "${quiet[@]}" --disable-pip-version-check --no-deps --only-binary=:all: --requirement "$REQUIREMENTS" ||
    fail "cannot install ${REQUIREMENTS#"$ROOT"/}: see pip's message above; check the network and pip's configuration, then run this again"
problem=$(imports) || fail "an installed package does not load: ${problem##*$'\n'}; remove $TARGET and run this again"
cp "$REQUIREMENTS" "$STAMP"
say "the tests' Python environment: ${TARGET#"$ROOT"/}"
