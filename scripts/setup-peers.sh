#!/usr/bin/env bash
# Makes .tools/peers/NAME, the Python environment of each server with which `make bench-peers` compares Trireme, of the versions in
# bench/peers/NAME.txt; and .tools/triton, the server itself of the peer triton.
#
# A peer that cannot be installed here gets a file .tools/peers/NAME/unavailable that says why, and its rows in the table repeat it. The
# next run tries again.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PEERS=$TOOLS/peers

# unavailable NAME REASON: leaves the peer out.
unavailable() {
    rm -rf "${PEERS:?}/$1"
    mkdir -p "$PEERS/$1"
    echo "$2" >"$PEERS/$1/unavailable"
    say "$1 is left out: $2"
}

# find_python VERSION: prints a Python of this version; the variable PYTHON_3_12 names one for 3.12.
find_python() {
    local variable=PYTHON_${1/./_} candidate
    for candidate in "${!variable:-}" "$(pyenv prefix "$1" 2>/dev/null)/bin/python" "python$1" python3; do
        if [[ -n $candidate && $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == "$1" ]]; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# peer NAME PYTHON_VERSION SIZE: makes the environment, unless it is there.
peer() {
    local name=$1 version=$2 target=$PEERS/$1 wanted=$ROOT/bench/peers/$1.txt python
    if cmp --silent "$wanted" "$target/requirements.txt"; then
        say "the peer is there: ${target#"$ROOT"/}"
        return
    fi
    if [[ $(machine) != x86_64 ]]; then
        unavailable "$name" "its versions are pinned for x86_64, this machine is $(machine)"
        return
    fi
    if ! python=$(find_python "$version"); then
        unavailable "$name" "it needs Python $version, which is not on this machine (PYTHON_${version/./_}=PATH names one)"
        return
    fi
    say "making ${target#"$ROOT"/} (about $3)"
    rm -rf "$target"
    mkdir -p "$PEERS"
    if ! "$python" -m venv "$target" >/dev/null; then
        unavailable "$name" "$python cannot make a virtual environment"
        return
    fi
    # Without dependencies: the file has them all, less CUDA's libraries.
    if ! "$target/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --requirement "$wanted"; then
        unavailable "$name" "pip cannot install bench/peers/$name.txt"
        return
    fi
    if grep -q '^torch==' "$wanted" && ! { "$ROOT/scripts/torch-without-cuda.py" "$target" && "$target/bin/python" -c 'import torch'; }; then
        unavailable "$name" "PyTorch does not start without CUDA's libraries, which are 2 to 3 GB (scripts/torch-without-cuda.py needs cc, nm and readelf)"
        return
    fi
    cp "$wanted" "$target/requirements.txt"
}

if "$ROOT/scripts/setup-triton.sh"; then
    # Triton's python backend runs its models with the Python for which its stub is.
    peer triton "$("$TOOLS/triton/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" "60 MB"
else
    unavailable triton "scripts/setup-triton.sh cannot install nvidia-pytriton here"
fi
peer infinity 3.11 "1 GB"
peer sie 3.12 "1.5 GB"
