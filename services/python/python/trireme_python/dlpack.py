"""DLPack for elements that numpy does not have: BF16. Others go by way of numpy."""

import ctypes

import numpy as np

# Of dlpack.h: the code of a type, its bits and lanes.
BFLOAT16 = (4, 16, 1)
NEW, USED = b"dltensor", b"used_dltensor"


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Managed(ctypes.Structure):
    """A DLManagedTensor."""


Managed._fields_ = [
    ("data", ctypes.c_void_p),
    ("device", Device),
    ("ndim", ctypes.c_int32),
    ("dtype", DataType),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))),
]


def _python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


new_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# A capsule that is being freed must not be referred to: it is an address there.
pointer_in = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
set_name = _python("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)

# The memory of exported tensors, by the address of their description, until whoever has them frees them.
KEPT = {}


@ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
def free(managed):
    """Frees an exported tensor."""
    KEPT.pop(ctypes.addressof(managed.contents), None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def drop(capsule):
    """Frees the tensor of a capsule that nobody has used."""
    if is_valid(capsule, NEW):
        KEPT.pop(pointer_in(capsule, NEW), None)


def export(array):
    """A capsule of an array of uint16, as BF16."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    managed = Managed(
        data=array.ctypes.data,
        device=Device(1, 0),
        ndim=array.ndim,
        dtype=DataType(*BFLOAT16),
        shape=shape,
        deleter=free,
    )
    address = ctypes.addressof(managed)
    KEPT[address] = managed, shape, array
    return new_capsule(address, NEW, ctypes.cast(drop, ctypes.c_void_p))


def is_capsule(value):
    """Whether this is a capsule of a tensor that nobody has used."""
    return bool(is_valid(id(value), NEW))


def take(capsule):
    """The tensor of a capsule as an array of uint16, a copy, where it is BF16; else None, and the capsule is as it was."""
    at = id(capsule)
    managed = Managed.from_address(pointer_in(at, NEW))
    if (managed.dtype.code, managed.dtype.bits, managed.dtype.lanes) != BFLOAT16:
        return None
    shape = managed.shape[: managed.ndim]
    strides = managed.strides[: managed.ndim] if managed.strides else None
    if 0 in shape:
        array = np.empty(shape, np.uint16)
    else:
        last = sum((size - 1) * stride for size, stride in zip(shape, strides)) if strides else int(np.prod(shape)) - 1
        elements = (ctypes.c_uint16 * (last + 1)).from_address(managed.data + managed.byte_offset)
        strides = strides and [2 * stride for stride in strides]
        array = np.ndarray(shape, np.uint16, buffer=elements, strides=strides).copy()
    set_name(at, USED)
    if managed.deleter:
        managed.deleter(ctypes.pointer(managed))
    return array
