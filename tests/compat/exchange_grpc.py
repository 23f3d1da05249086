"""Makes one gRPC call of a scenario and returns the answer in the same form as an HTTP answer.

The status is gRPC's number, 0 for OK. The text is the response as protobuf's JSON, with field names as in the .proto file
and bytes in base64. For a stream it is the array of responses, for an error `{"error": message}`. Messages are made from
the descriptors of the official client; its other code is not used.
"""

import base64
import json

import grpc
from google.protobuf import json_format, message_factory
from tritonclient.grpc import service_pb2

from exchange import TIMEOUT_S, Answer, part

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def exchange(address, request):
    """Makes the call of a scenario; returns the answer."""
    method = SERVICE.methods_by_name[request["grpc"]]
    ask, answer = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))
    codec = {"request_serializer": ask.SerializeToString, "response_deserializer": answer.FromString}
    path = f"/{SERVICE.full_name}/{method.name}"
    how = {"timeout": TIMEOUT_S, "metadata": list(request.get("metadata", {}).items())}
    messages = [to_message(ask, message) for message in request.get("messages", [request.get("message", {})])]
    responses = []
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        try:
            if method.server_streaming:
                for response in channel.stream_stream(path, **codec)(iter(messages), **how):
                    responses.append(to_json(response))
                return Answer(0, {}, text(responses))
            response = channel.unary_unary(path, **codec)(messages[0], **how)
            return Answer(0, {}, text(to_json(response)))
        except grpc.RpcError as error:
            failed = {"error": error.details()}
            return Answer(error.code().value[0], {}, text([*responses, failed] if method.server_streaming else failed))


def to_message(kind, message):
    """A message from its JSON, in which `raw_input_contents` may be parts like those of HTTP bodies."""
    if "raw_input_contents" in message:
        contents = [base64.b64encode(part(piece)).decode() for piece in message["raw_input_contents"]]
        message = {**message, "raw_input_contents": contents}
    return json_format.ParseDict(message, kind())


def to_json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def text(value):
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
