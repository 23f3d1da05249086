"""Hosts one instance of a model of backend `python` for a Trireme worker.

The worker starts `python -m trireme_python` with a Unix socket as standard input and speaks docs/stage-protocol.md with it.
Needs CPython 3.9 or newer and numpy, nothing else. What a model.py imports is `triton_python_backend_utils`, beside this package.
"""
