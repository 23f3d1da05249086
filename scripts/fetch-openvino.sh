#!/usr/bin/env bash
# Puts the OpenVINO execution provider, a plugin for ONNX Runtime, into .tools/openvino. Intel publishes it for x86_64.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=1.8.1
SHA256=3832643158c8c187fcab6db661cde2a8c06a2b3559d95d0f2411ac0e51c5e924
TARGET=$TOOLS/openvino
LIBRARY=$TARGET/libonnxruntime_providers_openvino_plugin.so

if [[ $(machine) != x86_64 ]]; then
    say "the OpenVINO plugin is published for x86_64 only: nothing to fetch"
    exit 0
fi
if [[ -f $LIBRARY && -f $TARGET/VERSION && $(<"$TARGET/VERSION") == "$VERSION" ]]; then
    say "the OpenVINO plugin $VERSION is there: ${LIBRARY#"$ROOT"/}"
    exit 0
fi

say "fetching the OpenVINO plugin $VERSION (about 53 MB)"
package=onnxruntime_ep_openvino
# Only the plugin for the CPU: those for GPUs and NPUs are left out.
fetch_wheel "onnxruntime-ep-openvino==$VERSION" "$SHA256" \
    $package/libonnxruntime_providers_openvino_plugin.so $package/libopenvino.so.2641 $package/libopenvino_intel_cpu_plugin.so \
    $package/libopenvino_onnx_frontend.so.2641 $package/libopenvino_ir_frontend.so.2641 $package/libhwloc.so.15 \
    $package/libtbb.so.12 $package/libtbbbind_2_5.so.3 $package/libtbbmalloc.so.2 $package/third-party-programs.txt
rm -rf "$TARGET"
for file in "$SCRATCH/$package"/*; do
    install_file "$file" "$TARGET/$(basename "$file")"
done
echo "$VERSION" >"$TARGET/VERSION"
python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$LIBRARY" ||
    fail "$LIBRARY does not load here: see above; it needs glibc 2.28 or newer"
say "the OpenVINO plugin $VERSION: ${LIBRARY#"$ROOT"/}"
