"""The host of this process. It is None where a model.py is run by something other than a worker."""

host = None
