#!/usr/bin/env bash
# Builds the wheel of the `trireme` binary: make-wheel.sh FOLDER [PROFILE]. It goes into FOLDER.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=$1 profile=${2:-release}
target=$TOOLS/wheel-python requirements=$ROOT/tests/installed/requirements.txt
if ! cmp --silent "$requirements" "$target/requirements.txt"; then
    say "making ${target#"$ROOT"/}"
    rm -rf "$target"
    mkdir -p "$TOOLS"
    python3 -m venv "$target" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    "$target/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" || {
        rm -rf "$target"
        fail "cannot install tests/installed/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
    }
    cp "$requirements" "$target/requirements.txt"
fi
rm -rf "$folder"
say "building a wheel (profile $profile)"
# The tag linux_… says that the wheel is for machines like this one. An index takes wheels with the tag manylinux_… only,
# which are built where the C library is old.
"$target/bin/maturin" build --manifest-path "$ROOT/cli/Cargo.toml" --profile "$profile" --locked --out "$folder" --compatibility linux
say "$(ls "$folder"/*.whl)"
