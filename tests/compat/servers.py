"""The ways to ask a server: by protocol, a function from a scenario's request to the answer."""

import functools

import exchange

# How servers are set up, by name: the folder in models/ that they serve, and their flags.
DEFAULT = "default"
SERVERS = {
    DEFAULT: ("repository", []),
    # Regions can be registered: in the recorded release always, in Trireme and in newer ones with --allow-client-shm.
    "shared memory": ("repository", []),
    "explicit": ("control", ["--model-control-mode=explicit", "--load-model=c"]),
}


def servers_at(url, grpc_address=None):
    """HTTP, and gRPC where its address is known. Only then are the packages needed that gRPC takes."""
    servers = {"http": functools.partial(exchange.exchange, url)}
    if grpc_address:
        import exchange_grpc

        servers["grpc"] = functools.partial(exchange_grpc.exchange, grpc_address)
    return servers
