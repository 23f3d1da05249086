"""Errors that a model raises or answers with."""

import enum

from trireme_python import values

CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
ErrorCode = enum.IntEnum("ErrorCode", CODES, start=0)


class TritonModelException(Exception):
    """What a model raises for all requests of an `execute`, and what is raised where something is not supported."""


class TritonError:
    """Why a request gets no outputs: a message, and one of Triton's error codes."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message, code=ErrorCode.INTERNAL):
        self._code = ErrorCode(values.whole("the code of a TritonError", code, 0, len(CODES) - 1))
        self._message = values.message(message)
        # Whether the model has not executed the request, so that the worker tries it again.
        self._again = False

    def message(self):
        """What the client reads."""
        return self._message

    def code(self):
        """The code."""
        return self._code

    def describe(self):
        """The error as a frame's header has it."""
        described = {"code": self._code.name, "message": self._message}
        if self._again:
            described["again"] = True
        return described

    @classmethod
    def not_executed(cls, message):
        """The error of a request that the model has not executed."""
        error = cls(message, cls.UNAVAILABLE)
        error._again = True
        return error

    @classmethod
    def received(cls, header):
        """The error that a frame's header describes."""
        code = header.get("code", "INTERNAL")
        return cls(header.get("message", ""), ErrorCode[code] if code in CODES else cls.INTERNAL)

    def __str__(self):
        return self._message


def unsupported(what):
    """Raises what a model gets that uses something which is not there."""
    raise TritonModelException(f"{what} is not supported by Trireme")
