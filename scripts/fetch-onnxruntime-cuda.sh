#!/usr/bin/env bash
# Puts the CUDA build of ONNX Runtime, with the libraries of CUDA 13 and cuDNN 9 that it loads, into .tools/onnxruntime-cuda
# (2.4 GB). NVIDIA's driver itself, libcuda.so.1 of release 580 or newer, comes with the machine that has the GPU.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/onnxruntime-cuda
ONNXRUNTIME=1.31.1
WHEELS="
onnxruntime-gpu==$ONNXRUNTIME e26c475fe361b2015f45b4b824bd13f0bb20204e59b62814e6f0acd5f3d491a6
nvidia-cublas==13.10.0.20 dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84
nvidia-cuda-runtime==13.5.37 df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d
nvidia-cuda-nvrtc==13.5.37 86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc
nvidia-nvjitlink==13.5.37 280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb
nvidia-cufft==12.5.0.14 b8be26837a5abad2b5b74f3e92dd29f622a42934b355be0961a48712cbba23ad
nvidia-curand==10.4.5.25 22bb226a857e5888fe6b54ae465fc4371296bcff13a35f79e19691bcf454f529
nvidia-cudnn-cu13==9.28.0.42 7358353c75bb121a58e5f7712fe6d588883dc1df8ba00f428237e44e97543c4d
"
STAMP=$TARGET/wheels.txt

[[ $(machine) == x86_64 ]] || fail "the CUDA build of ONNX Runtime is published for x86_64 only"
if [[ -f $STAMP && $(cat "$STAMP") == "$WHEELS" ]]; then
    say "ONNX Runtime $ONNXRUNTIME for CUDA is there: ${TARGET#"$ROOT"/}"
    exit 0
fi

rm -rf "$TARGET"
while read -r requirement sha256; do
    [[ -n $requirement ]] || continue
    say "fetching $requirement"
    fetch_wheel "$requirement" "$sha256"
    # Licences are installed too, under the package's name; headers, static libraries and Python files are not.
    while read -r library; do
        install_file "$library" "$TARGET/$(basename "$library")"
    done < <(find "$SCRATCH" -name 'lib*.so*' -type f)
    while read -r licence; do
        install_file "$licence" "$TARGET/licences/${requirement%%==*}/$(basename "$licence")"
    done < <(find "$SCRATCH" -iname '*licen[sc]e*' -type f -o -name ThirdPartyNotices.txt)
    find "$SCRATCH" -mindepth 1 -delete
done <<<"$WHEELS"
mv "$TARGET/libonnxruntime.so.$ONNXRUNTIME" "$TARGET/libonnxruntime.so"
printf '%s\n' "$WHEELS" >"$STAMP"
say "ONNX Runtime $ONNXRUNTIME for CUDA: ${TARGET#"$ROOT"/}"
