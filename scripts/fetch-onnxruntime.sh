#!/usr/bin/env bash
# Puts the ONNX Runtime library, which the model service loads at run time, into .tools/onnxruntime.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=1.31.1
TARGET=$TOOLS/onnxruntime
LIBRARY=$TARGET/libonnxruntime.so

processor=$(machine)
case $processor in
    x86_64) SHA256=5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f ;;
    aarch64) SHA256=da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3 ;;
esac

# Loads the library and prints its version, through the first two functions of its C interface.
library_version() {
    python3 - "$LIBRARY" 2>&1 <<'PYTHON'
import ctypes, sys

class ApiBase(ctypes.Structure):
    _fields_ = [("get_api", ctypes.c_void_p), ("get_version", ctypes.CFUNCTYPE(ctypes.c_char_p))]

base = ctypes.CDLL(sys.argv[1]).OrtGetApiBase
base.restype = ctypes.POINTER(ApiBase)
print(base().contents.get_version().decode())
PYTHON
}

if [[ -f $LIBRARY && $(library_version) == "$VERSION" ]]; then
    say "ONNX Runtime $VERSION is there: ${LIBRARY#"$ROOT"/}"
    exit 0
fi

say "fetching ONNX Runtime $VERSION (about 23 MB)"
fetch_wheel "onnxruntime==$VERSION" "$SHA256" \
    "onnxruntime/capi/libonnxruntime.so.$VERSION" onnxruntime/LICENSE onnxruntime/ThirdPartyNotices.txt
install_file "$SCRATCH/onnxruntime/LICENSE" "$TARGET/LICENSE"
install_file "$SCRATCH/onnxruntime/ThirdPartyNotices.txt" "$TARGET/ThirdPartyNotices.txt"
install_file "$SCRATCH/onnxruntime/capi/libonnxruntime.so.$VERSION" "$LIBRARY"

found=$(library_version) || true
[[ $found == "$VERSION" ]] ||
    fail "$LIBRARY does not load here: ${found##*$'\n'}; it needs glibc 2.28 or newer (yours: $(ldd --version 2>&1 | head -n 1))"
say "ONNX Runtime $VERSION: ${LIBRARY#"$ROOT"/}"
