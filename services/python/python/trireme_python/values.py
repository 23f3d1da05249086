"""Values that a model's code gives, checked where they are made: what is no value of its kind is an error of that code, and what
leaves the process can be read.
"""

import math
import operator
import traceback

# Longer messages of errors and of the log are cut, in characters.
LONGEST_MESSAGE = 64 * 1024

# The most that the parameters of a request or response, or a name, may have, in characters.
LONGEST_PARAMETERS, LONGEST_NAME = 1 << 20, 4096


def message(value):
    """The text of an error or of a line for the log: cut where it is long, with `?` for what UTF-8 cannot say."""
    if isinstance(value, (bytes, bytearray)):
        found = value.decode(errors="replace")
    else:
        found = str(value)
    if len(found) > LONGEST_MESSAGE:
        found = f"{found[:LONGEST_MESSAGE]}... ({len(found)} characters)"
    return found.encode(errors="replace").decode()


def said(error):
    """An exception as `Type: text`, in Triton's words where there is no text."""
    try:
        return message(f"{type(error).__name__}: {str(error) or '<EMPTY MESSAGE>'}")
    except BaseException as failure:
        return f"{type(error).__name__}: its text cannot be made: its __str__ raises {type(failure).__name__}"


def traced(error):
    """An exception with its traceback, for the log."""
    try:
        return message("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    except BaseException:
        return said(error)


def kind(value):
    """The type of a value, as an error names it."""
    return type.__repr__(type(value))


def name(what, value):
    """A name: a str, or bytes, as elements of BYTES tensors are."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise TypeError(f"{what} is {value[:LONGEST_NAME]!r}, expected a str, or bytes in UTF-8") from None
    return encodable(what, value, LONGEST_NAME)


def names(what, values):
    """A list of names."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} is a {type(values).__name__}, expected a list of them")
    return [name(f"one of {what}", value) for value in values]


def encodable(what, value, longest=LONGEST_PARAMETERS):
    """A str that UTF-8 can say, not longer than `longest` characters."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {kind(value)}, expected a str")
    # Of a class of its own it could say one thing now and another one later.
    value = str.__str__(value)
    if len(value) > longest:
        raise ValueError(f"{what} has {len(value)} characters, expected {longest} at most")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} is {value[:LONGEST_NAME]!a}, which UTF-8 cannot say: it has a lone surrogate") from None
    return value


def whole(what, value, least=0, most=2**64 - 1):
    """A whole number, Python's or numpy's."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is a {kind(value)}, expected an int") from None
    if not least <= number <= most:
        raise ValueError(f"{what} is out of range: expected {least} to {most}")
    return number


def parameter(what, value):
    """The value of a parameter: a bool, int, finite float or str."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return whole(what, value, -(2**63))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {float(value)}, expected a finite number")
        return float(value)
    if isinstance(value, str):
        return encodable(what, value)
    raise TypeError(f"{what} is a {kind(value)}, expected a bool, int, float or str")
