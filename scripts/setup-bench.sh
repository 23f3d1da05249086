#!/usr/bin/env bash
# Makes .tools/bench-python, the Python environment of `make bench`, and .tools/bench-openvino if OpenVINO has to be
# built into ONNX Runtime, because its plugin only supports Intel processors.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

environment "$TOOLS/bench-python" "$ROOT/bench/requirements.txt" "80 MB" --only-binary=:all: ||
    fail "cannot install bench/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
if [[ $(machine) == x86_64 ]] && ! grep -q GenuineIntel /proc/cpuinfo; then
    environment "$TOOLS/bench-openvino" "$ROOT/bench/requirements-openvino.txt" "120 MB" --only-binary=:all: ||
        say "OpenVINO is left out: there is no ONNX Runtime with it for this Python (see pip's message above)"
fi
