#!/usr/bin/env python3
"""Encrypted connections: HTTPS and gRPC over TLS with tritonclient, with an API key and clients' certificates."""

from pathlib import Path

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

import checks
from checks import expect, expect_equal

CERTIFICATES = Path(__file__).resolve().parent.parent / "certificates"
CA, CERTIFICATE, KEY = (str(CERTIFICATES / name) for name in ("ca.pem", "client.pem", "client.key"))

A = np.arange(16, dtype=np.int32).reshape(1, 16)


def infer(client, kind, headers):
    """Sum and difference, checked."""
    inputs = [kind.InferInput(name, [1, 16], "INT32").set_data_from_numpy(A) for name in ("INPUT0", "INPUT1")]
    # A copy, because the HTTP client adds its own headers to the dictionary.
    result = client.infer("simple", inputs, headers=dict(headers) if headers else None)
    expect_equal("sum", result.as_numpy("OUTPUT0"), A + A)
    expect_equal("difference", result.as_numpy("OUTPUT1"), A - A)


def fails(call):
    """Whether the call fails."""
    try:
        call()
    except Exception as error:  # each transport has its own exceptions
        return str(error) or type(error).__name__
    return None


def main():
    def add(parser):
        parser.add_argument("--grpc", required=True, metavar="HOST:PORT")
        parser.add_argument("--mutual", action="store_true", help="whether clients have to show a certificate")
        parser.add_argument("--api-key")

    arguments = checks.arguments(__doc__, add)
    headers = {"authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else None
    http_host = arguments.url.replace("127.0.0.1", "localhost")
    grpc_host = arguments.grpc.replace("127.0.0.1", "localhost")

    def https(ca=CA, certificate=arguments.mutual):
        shown = {"certfile": CERTIFICATE, "keyfile": KEY} if certificate else {}
        return triton.InferenceServerClient(http_host, ssl=True, ssl_options={"ca_certs": ca, **shown})

    def grpc(ssl=True, certificate=arguments.mutual):
        shown = dict(private_key=KEY, certificate_chain=CERTIFICATE) if certificate else {}
        return triton_grpc.InferenceServerClient(grpc_host, ssl=ssl, root_certificates=CA if ssl else None, **shown)

    def plain_is_refused():
        client = triton.InferenceServerClient(http_host, connection_timeout=5, network_timeout=5)
        expect(fails(client.is_server_live), "HTTP without TLS was answered")
        expect(fails(lambda: grpc(ssl=False).is_server_live(client_timeout=5)), "gRPC without TLS was answered")

    def without_key():
        if not arguments.api_key:
            return "no key is asked for"
        for client, kind in ((https(), triton), (grpc(), triton_grpc)):
            error = fails(lambda: infer(client, kind, None))
            expect(error, f"{kind.__name__}: a request without the key was answered")

    def without_certificate():
        if not arguments.mutual:
            return "none is asked for"
        expect(fails(lambda: grpc(certificate=False).is_server_live(client_timeout=5)), "a stranger was answered")
        expect(fails(https(certificate=False).is_server_live), "a stranger was answered over HTTPS")

    checks.run(
        [
            ("HTTPS", lambda: infer(https(), triton, headers)),
            ("gRPC over TLS", lambda: infer(grpc(), triton_grpc, headers)),
            ("without TLS", plain_is_refused),
            ("without the API key", without_key),
            ("without a client's certificate", without_certificate),
        ]
    )


if __name__ == "__main__":
    main()
