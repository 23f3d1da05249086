"""A program for backend `process`: the halves of numbers."""

from trireme_python.stage import stage


@stage
def halves(IN):
    return {"OUT": IN / 2}
