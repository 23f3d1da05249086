#!/usr/bin/env bash
# Makes .tools/seeds-python, the Python environment of `make seeds-test`: transformers and optimum of the time of the posts, and
# torch, which is Debian's python3-torch: the wheels on PyPI come with gigabytes of libraries for GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$TOOLS/seeds-python requirements=$ROOT/tests/seeds/requirements.txt base=/usr/bin/python3
stamp=$target/requirements.txt quiet=()
if cmp --silent "$requirements" "$stamp"; then
    say "the Python environment of seeds-test is there: ${target#"$ROOT"/}"
    exit
fi
"$base" -c 'import torch' 2>/dev/null || fail "torch is missing: install Debian's (apt-get install --no-install-recommends python3-torch python3-venv), or name a Python with tests/seeds/requirements.txt and torch as SEEDS_PYTHON"
say "making ${target#"$ROOT"/} (about 250 MB)"
rm -rf "$target"
mkdir -p "$TOOLS"
"$base" -m venv --system-site-packages "$target" >/dev/null || fail "$base cannot make a virtual environment: install its venv module (apt-get install python3-venv)"
[[ -t 1 ]] || quiet=(--quiet)
if ! "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --no-deps --requirement "$requirements"; then
    rm -rf "$target"
    fail "cannot install tests/seeds/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
fi
cp "$requirements" "$stamp"
