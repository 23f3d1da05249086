#!/usr/bin/env python3
"""Takes spans over OTLP/gRPC, as a collector does, and writes each to standard error as a line of JSON.

The first line says where it listens: {"message": "listening", "endpoint": "http://127.0.0.1:PORT"}.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


def write(line):
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


def plain(span, resource):
    return {
        "message": "span",
        "service": resource["service.name"],
        "resource": resource,
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "attributes": attributes(span.attributes),
        "links": [{"trace": link.trace_id.hex(), "id": link.span_id.hex()} for link in span.links],
        "events": [event.name for event in span.events],
        "failed": span.status.code == 2,
        "status": span.status.message,
    }


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for of_resource in request.resource_spans:
            resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    write(plain(span, resource))
        return trace_service_pb2.ExportTraceServiceResponse()


def main():
    # A single thread, so that lines stay whole.
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    write({"message": "listening", "endpoint": f"http://127.0.0.1:{port}"})
    server.wait_for_termination()


if __name__ == "__main__":
    main()
