"""Errors that a model raises or answers with."""

UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)
CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()


class TritonModelException(Exception):
    """What a model raises for all requests of an `execute`, and what is raised where something is not supported."""


class TritonError:
    """Why a request gets no outputs: a message, and one of Triton's error codes."""

    UNKNOWN = UNKNOWN
    INTERNAL = INTERNAL
    NOT_FOUND = NOT_FOUND
    INVALID_ARG = INVALID_ARG
    UNAVAILABLE = UNAVAILABLE
    UNSUPPORTED = UNSUPPORTED
    ALREADY_EXISTS = ALREADY_EXISTS
    CANCELLED = CANCELLED

    def __init__(self, message, code=INTERNAL):
        if not 0 <= int(code) < len(CODES):
            raise ValueError(f"error code {code} is none of TritonError's")
        self._message, self._code = str(message), int(code)

    def message(self):
        """What the client reads."""
        return self._message

    def code(self):
        """The code."""
        return self._code

    def describe(self):
        """The error as a frame's header has it."""
        return {"code": CODES[self._code], "message": self._message}

    @classmethod
    def received(cls, header):
        """The error that a frame's header describes."""
        code = header.get("code", "INTERNAL")
        return cls(header.get("message", ""), CODES.index(code) if code in CODES else INTERNAL)

    def __str__(self):
        return self._message


def unsupported(what):
    """Raises what a model gets that uses something which is not there."""
    raise TritonModelException(f"{what} is not supported by Trireme")
