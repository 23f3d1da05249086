"""The other name of `triton_python_backend_utils`: what Triton has in C++."""

import sys

import triton_python_backend_utils

sys.modules[__name__] = triton_python_backend_utils
