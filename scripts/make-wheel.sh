#!/usr/bin/env bash
# Builds the wheel of the `trireme` binary: make-wheel.sh FOLDER [PROFILE]. It goes into FOLDER.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=$1 profile=${2:-release}
target=$TOOLS/wheel-python requirements=$ROOT/tests/installed/requirements.txt
environment "$target" "$requirements" "11 MB" ||
    fail "cannot install tests/installed/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
rm -rf "$folder"
say "building a wheel (profile $profile)"
# The tag linux_… says that the wheel is for machines like this one. An index takes wheels with the tag manylinux_… only,
# which are built where the C library is old.
"$target/bin/maturin" build --manifest-path "$ROOT/cli/Cargo.toml" --profile "$profile" --locked --out "$folder" --compatibility linux
say "$(ls "$folder"/*.whl)"
