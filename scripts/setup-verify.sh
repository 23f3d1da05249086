#!/usr/bin/env bash
# Makes .tools/verify-python, the Python environment of `make verify-test`: torch and the libraries whose folders are served.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

environment "$TOOLS/verify-python" "$ROOT/tests/verify/requirements.txt" "4 GB: torch comes with its libraries for GPUs" ||
    fail "cannot install tests/verify/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"

# gliner asks for transformers below 5.17, and works with the one that the other libraries are compared with.
"$TOOLS/verify-python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps gliner==0.2.29 ||
    fail "cannot install gliner: see pip's message above; check the network and pip's configuration, then run this again"
