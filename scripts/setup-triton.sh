#!/usr/bin/env bash
# Makes .tools/triton: NVIDIA's tritonserver with its python backend, from the wheel nvidia-pytriton, and a Python for its models.
# `make record` records from it, and `make bench` compares Python models with it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=0.7.0 target=$TOOLS/triton
stamp=$target/version-$version
if [[ -f $stamp ]]; then
    say "Triton is there: ${target#"$ROOT"/}"
    exit
fi
[[ $(machine) == x86_64 ]] || fail "the wheel nvidia-pytriton has a tritonserver for x86_64 only, this machine is $(machine)"
say "making ${target#"$ROOT"/} (about 250 MB)"
empty_environment "$target"
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
install() { "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check --only-binary=:all: "$@"; }
if ! install --no-deps "nvidia-pytriton==$version" || ! install "numpy<2"; then
    rm -rf "$target"
    fail "cannot install nvidia-pytriton: see pip's message above; check the network and pip's configuration, then run this again"
fi
packages=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python=$("$target/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
stub=$packages/pytriton/tritonserver/python_backend_stubs/$python/triton_python_backend_stub
[[ -f $stub ]] || fail "the wheel has no stub for Python $python (pytriton/tritonserver/python_backend_stubs)"
cp "$stub" "$packages/pytriton/tritonserver/backends/python/"
chmod +x "$packages/pytriton/tritonserver/bin/tritonserver" "$packages/pytriton/tritonserver/backends/python/triton_python_backend_stub"
ln -sfn "$packages/pytriton/tritonserver" "$target/tritonserver"
ln -sfn "$packages/nvidia_pytriton.libs" "$target/libraries"
touch "$stamp"
