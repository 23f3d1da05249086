#!/usr/bin/env bash
# Makes .tools/bench-python, the Python environment of `make bench`, and .tools/bench-openvino if OpenVINO has to be
# built into ONNX Runtime, because its plugin only supports Intel processors.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# environment TARGET REQUIREMENTS SIZE: makes the Python environment, unless it exists.
environment() {
    local target=$1 requirements=$2 size=$3 stamp=$1/requirements.txt quiet=()
    if cmp --silent "$requirements" "$stamp"; then
        say "the benchmark's Python environment is there: ${target#"$ROOT"/}"
        return
    fi
    say "making the benchmark's Python environment ${target#"$ROOT"/} (about $size)"
    rm -rf "$target"
    mkdir -p "$TOOLS"
    python3 -m venv "$target" >/dev/null || fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    [[ -t 1 ]] || quiet=(--quiet)
    if ! "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --only-binary=:all: --requirement "$requirements"; then
        rm -rf "$target"
        return 1
    fi
    cp "$requirements" "$stamp"
}

environment "$TOOLS/bench-python" "$ROOT/bench/requirements.txt" "80 MB" ||
    fail "cannot install bench/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
if [[ $(machine) == x86_64 ]] && ! grep -q GenuineIntel /proc/cpuinfo; then
    environment "$TOOLS/bench-openvino" "$ROOT/bench/requirements-openvino.txt" "120 MB" ||
        say "OpenVINO is left out: there is no ONNX Runtime with it for this Python (see pip's message above)"
fi
