"""Makes one gRPC call of a scenario and returns the answer in the same form as an HTTP answer.

The status is gRPC's number, 0 for OK. The text is the response as protobuf's JSON, with field names as in the .proto file
and bytes in base64. For a stream it is the array of responses, for an error `{"error": message}`. Messages are made from
the descriptors of the official client; its other code is not used.
"""

import base64
import json
import threading

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
    how = {"timeout": request.get("deadline_ms", TIMEOUT_S * 1000) / 1000, "metadata": list(request.get("metadata", {}).items())}
    messages = [to_message(ask, message) for message in request.get("messages", [request.get("message", {})])]
    responses = []
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        try:
            if method.server_streaming:
                call = channel.stream_stream(path, **codec)(iter(messages), **how)
                hang_up(call, request)
                for response in call:
                    responses.append(to_json(response))
                return Answer(0, {}, text(responses))
            call = channel.unary_unary(path, **codec).future(messages[0], **how)
            hang_up(call, request)
            return Answer(0, {}, text(to_json(call.result())))
        except grpc.FutureCancelledError:
            return Answer(grpc.StatusCode.CANCELLED.value[0], {}, text({"error": "the client has cancelled it"}))
        except grpc.RpcError as error:
            failed = {"error": error.details()}
            return Answer(error.code().value[0], {}, text([*responses, failed] if method.server_streaming else failed))


def hang_up(call, request):
    """Cancels a call after the time that its scenario says, if it says one."""
    if "cancel_after_ms" in request:
        threading.Timer(request["cancel_after_ms"] / 1000, call.cancel).start()


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
