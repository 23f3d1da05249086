"""The protocols: for each, a function from a scenario's request to the server's answer."""

import functools

import exchange

# Models in Python. Both servers run the same files.
PYTHON_MODELS = "echo types batches asked returns caller at_once counts returning sends chain life witness patient".split()
PYTHON_MODELS += ["completes", "fills"]

# The setups of servers, by name: the folder in models/ that they serve, and their flags.
DEFAULT = "default"
SERVERS = {
    DEFAULT: ("repository", []),
    # Regions can be registered: in the recorded release always, in Trireme and in newer releases with
    # --allow-client-shm.
    "shared memory": ("repository", []),
    "sequences": ("sequences", []),
    "explicit": ("control", ["--model-control-mode=explicit", "--load-model=c"]),
    # All but the models that cannot be loaded.
    "python": ("python", ["--model-control-mode=explicit", *(f"--load-model={name}" for name in PYTHON_MODELS)]),
}


def servers_at(url, grpc_address=None):
    """HTTP, and gRPC if its address is known. The packages for gRPC are needed only then."""
    servers = {"http": functools.partial(exchange.exchange, url)}
    if grpc_address:
        import exchange_grpc

        servers["grpc"] = functools.partial(exchange_grpc.exchange, grpc_address)
    return servers
