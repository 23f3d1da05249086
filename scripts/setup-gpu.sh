#!/usr/bin/env bash
# Makes .tools/gpu-python, the Python environment of `make bench-gpu`. Raw runs and Trireme load the ONNX Runtime in it. NVIDIA's driver,
# release 580 or newer, comes with the machine that has the GPU. On a machine without one the script ends with 2, and fetches nothing.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [[ ! -e /dev/nvidia0 ]] && ! nvidia-smi --list-gpus >/dev/null 2>&1; then
    say "make bench-gpu needs an NVIDIA GPU, and this machine has none (no /dev/nvidia0; nvidia-smi lists none): nothing is fetched" >&2
    exit 2
fi
[[ $(machine) == x86_64 ]] || fail "the CUDA build of ONNX Runtime is published for x86_64 only"
environment "$TOOLS/gpu-python" "$ROOT/bench/requirements-gpu.txt" "4 GB" --only-binary=:all: ||
    fail "cannot install bench/requirements-gpu.txt: see pip's message above; check the network and pip's configuration, then run this again"
