"""Tensors, and the datatypes of their elements under the names of the v2 protocol, of config.pbtxt, of Triton and of numpy."""

import struct

import numpy as np

from trireme_python import dlpack, values
from trireme_python.errors import TritonModelException

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

# In the order of Triton's enumeration, which counts from 1.
NAMES = (
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16".split()
)
NUMBERS = {name: number for number, name in enumerate(NAMES, start=1)}
NUMPY = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
if bfloat16 is not None:
    NUMPY["BF16"] = np.dtype(bfloat16)
OF_NUMPY = {dtype: name for name, dtype in NUMPY.items()}

LENGTH = struct.Struct("<I")
# To copy so few bytes is faster than to make a view of them.
COPIED_BYTES = 4096


def datatype_of(array):
    """The datatype that numpy's elements have on the wire; None where they have none."""
    dtype = array.dtype
    name = OF_NUMPY.get(dtype)
    if name is not None:
        return name
    return "BYTES" if dtype.kind in "OSU" else OF_NUMPY.get(dtype.newbyteorder("="))


def encode_bytes(array):
    """The bytes of an array of texts: each element's length in 4 bytes, then the element."""
    parts = []
    for element in array.ravel(order="C").tolist():
        if not isinstance(element, bytes):
            element = str(element).encode()
        parts.append(LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def decode_bytes(encoded_tensor):
    """The elements in such bytes, as an array of `bytes` objects."""
    data, elements, offset = bytes(encoded_tensor), [], 0
    while offset < len(data):
        (length,) = LENGTH.unpack_from(data, offset)
        offset += LENGTH.size
        elements.append(data[offset : offset + length])
        offset += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


class Tensor:
    """A named tensor. One that came with a request becomes an array when that is asked for."""

    __slots__ = ("_name", "_array", "_datatype", "_shape", "_data")

    def __init__(self, name, array):
        name = values.name("the name of a tensor", name)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tensor '{name}' is a {type(array).__name__}, expected a numpy array: use numpy.asarray")
        datatype = datatype_of(array)
        if datatype is None:
            raise TypeError(f"tensor '{name}' has elements of {array.dtype}, which no datatype of the protocol is")
        self._name, self._array, self._datatype, self._data = name, array, datatype, None
        self._shape = list(array.shape)

    @classmethod
    def received(cls, header, data):
        """The tensor that a frame's header describes."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._datatype, tensor._shape = header["name"], header["datatype"], header["shape"]
        tensor._data, tensor._array = data[header["offset"] : header["offset"] + header["size"]], None
        return tensor

    def describe(self, layout):
        """The tensor as a frame's header has it; its bytes go into the layout."""
        if self._data is not None:
            data = self._data
        elif self._datatype == "BYTES":
            data = encode_bytes(self._array)
        else:
            array = self._array
            if not array.dtype.isnative:
                array = array.astype(NUMPY[self._datatype])
            if array.nbytes <= COPIED_BYTES:
                data = array.tobytes()
            else:
                # By way of bytes: numpy exports no buffers of elements that Python has no letter for.
                data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        offset = layout.add(data)
        return {
            "name": self._name,
            "datatype": self._datatype,
            "shape": self._shape,
            "offset": offset,
            "size": len(data),
        }

    def name(self):
        """The tensor's name."""
        return self._name

    def shape(self):
        """Its dimensions."""
        return list(self._shape)

    def triton_dtype(self):
        """The number of its datatype."""
        return NUMBERS[self._datatype]

    def is_cpu(self):
        """Whether it lies in the memory of the CPU: every tensor does here."""
        return True

    def as_numpy(self):
        """The tensor as a numpy array; BYTES as an array of `bytes` objects."""
        if self._array is None:
            if self._datatype == "BYTES":
                array = decode_bytes(self._data)
            elif self._datatype in NUMPY:
                array = np.frombuffer(self._data, dtype=NUMPY[self._datatype])
            else:
                raise TypeError(f"tensor '{self._name}' is BF16, which numpy has not: install the package ml_dtypes")
            self._array = array.reshape(self._shape)
            # The array may be written to, so it counts from now on.
            self._data = None
        return self._array

    def to_dlpack(self):
        """The tensor as a DLPack capsule."""
        return self.__dlpack__()

    def __dlpack__(self, stream=None, **options):
        if self._datatype == "BF16":
            return dlpack.export(self._as_uint16())
        array = self.as_numpy()
        # numpy exports no array that must not be written to.
        return (array if array.flags.writeable else array.copy()).__dlpack__(**options)

    def _as_uint16(self):
        """The elements of a BF16 tensor as they lie in memory."""
        if self._array is not None:
            return np.ascontiguousarray(self._array).view(np.uint16).reshape(self._shape)
        return np.frombuffer(self._data, dtype=np.uint16).reshape(self._shape)

    def __dlpack_device__(self):
        return (1, 0)

    @staticmethod
    def from_dlpack(name, tensor):
        """A tensor of whatever speaks DLPack, or of a capsule, in the memory of the CPU."""
        if hasattr(tensor, "__dlpack__"):
            if tensor.__dlpack_device__()[0] != 1:
                raise TypeError(f"tensor '{name}' is not in the memory of the CPU, and tensors on GPUs are not supported")
            tensor = tensor.__dlpack__()
        if not dlpack.is_capsule(tensor):
            raise TritonModelException(f"tensor '{name}' is made of a {values.kind(tensor)}, expected a DLPack capsule that nobody has used")
        elements = dlpack.take(tensor)
        if elements is None:
            return Tensor(name, np.from_dlpack(Capsule(tensor)))
        made = Tensor(name, elements)
        # numpy may not have such elements: they stay bytes.
        made._datatype, made._data, made._array = "BF16", memoryview(elements.reshape(-1).view(np.uint8)), None
        return made


class Capsule:
    """A DLPack capsule as numpy wants it."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)
