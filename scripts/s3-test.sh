#!/usr/bin/env bash
# Serves models from a server with S3's interface, which runs here (moto).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$TOOLS/s3-python requirements=$ROOT/tests/installed/requirements-s3.txt
environment "$target" "$requirements" "80 MB" ||
    fail "cannot install tests/installed/requirements-s3.txt: see pip's message above; check the network and pip's configuration, then run this again"
"$target/bin/python" "$ROOT/tests/installed/s3_test.py" "$@"
