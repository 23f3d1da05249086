"""Does what the first text of its input says."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        return [getattr(self, request.inputs()[0].as_numpy()[0].decode())(request) for request in requests]

    # --- arguments and parameters ---

    def arguments(self, request):
        folder = self.args["model_repository"].rstrip("/").rsplit("/", 1)[1]
        named = [self.args[name] for name in ("model_instance_kind", "model_name", "model_version")]
        return texts([*sorted(self.args), *named, folder, *{type(value).__name__ for value in self.args.values()}])

    def configured(self, request):
        output = pb_utils.get_output_config_by_name(self.config, "MORE")
        found = [self.config["name"], self.config["parameters"]["greeting"]["string_value"], output["data_type"]]
        found.append(str(output["dims"]))
        found.append(str(pb_utils.get_input_config_by_name(self.config, "NONE")))
        found.append(str(pb_utils.using_decoupled_model_transaction_policy(self.config)))
        return texts(found)

    def request(self, request):
        found = [request.request_id(), str(request.correlation_id()), str(request.flags()), str(request.timeout())]
        found += sorted(f"{name} {value!r}" for name, value in json.loads(request.parameters()).items())
        return texts(found + sorted(request.requested_output_names()) + [str(request.is_cancelled())])

    def names(self, request):
        named = pb_utils.get_input_tensor_by_name(request, "NONE")
        return texts([str(named), *(tensor.name() for tensor in request.inputs())])

    def helpers(self, request):
        kinds = [f"TYPE_{kind}" for kind in "BOOL UINT8 INT32 INT64 FP16 FP32 FP64 STRING".split()]
        found = [np.dtype(pb_utils.triton_string_to_numpy(kind)).name for kind in kinds]
        found += [np.dtype(pb_utils.triton_to_numpy_type(number)).name for number in (1, 2, 9, 11, 13)]
        found += [str(pb_utils.numpy_to_triton_type(kind)) for kind in (np.bool_, np.int64, np.float32, np.object_)]
        found.append(repr(pb_utils.serialize_byte_tensor(np.array([b"ab", b""], dtype=np.object_))))
        found += [repr(text) for text in pb_utils.deserialize_bytes_tensor(b"\x02\x00\x00\x00ab\x00\x00\x00\x00")]
        return texts(found)

    def constants(self, request):
        names = "TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITONSERVER_REQUEST_FLAG_SEQUENCE_START"
        names += " TRITONSERVER_REQUEST_FLAG_SEQUENCE_END TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU"
        names += " TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"
        codes = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
        found = [f"{name} {int(getattr(pb_utils, name))}" for name in names.split()]
        return texts(found + [f"{name} {int(getattr(pb_utils.TritonError, name))}" for name in codes.split()])

    def dlpack(self, request):
        array = np.arange(6, dtype=np.int32).reshape(2, 3)
        tensor = pb_utils.Tensor.from_dlpack("MORE", array)
        again = np.from_dlpack(tensor)
        return texts([str(again.tolist()), str(list(tensor.shape())), str(tensor.is_cpu())])

    # --- what a model may answer ---

    def parameters(self, request):
        more = {"text": "x", "whole": 7, "truth": True, "part": 0.5}
        return texts(["with parameters"], parameters=more)

    def no_outputs(self, request):
        return pb_utils.InferenceResponse([])

    def one_output(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("MORE", np.array([1, 2], dtype=np.int32))])

    def unknown_output(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.array([1], dtype=np.int32))])

    def other_datatype(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], dtype=np.int32))])

    def strided(self, request):
        array = np.arange(10, dtype=np.int32)[::3]
        return pb_utils.InferenceResponse([pb_utils.Tensor("MORE", array)])

    def texts_of_python(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["é", "b", ""], dtype=np.object_))])

    def fixed_texts(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"one", b"three"]))])

    # --- errors ---

    def error(self, request):
        return pb_utils.InferenceResponse([], error=pb_utils.TritonError("it has an error"))

    def error_beside_outputs(self, request):
        tensor = pb_utils.Tensor("OUT", np.array([b"x"], dtype=np.object_))
        return pb_utils.InferenceResponse([tensor], error=pb_utils.TritonError("it has both"))

    def invalid(self, request):
        return failed(pb_utils.TritonError.INVALID_ARG)

    def missing(self, request):
        return failed(pb_utils.TritonError.NOT_FOUND)

    def unavailable(self, request):
        return failed(pb_utils.TritonError.UNAVAILABLE)

    def unsupported(self, request):
        return failed(pb_utils.TritonError.UNSUPPORTED)

    def exists(self, request):
        return failed(pb_utils.TritonError.ALREADY_EXISTS)

    def cancelled(self, request):
        return failed(pb_utils.TritonError.CANCELLED)

    def unknown(self, request):
        return failed(pb_utils.TritonError.UNKNOWN)

    def raises(self, request):
        raise pb_utils.TritonModelException("it was raised")

    def divides(self, request):
        return 1 // 0

    def nothing(self, request):
        return None

    def a_text(self, request):
        return "a text"

    # --- the log ---

    def logs(self, request):
        pb_utils.Logger.log_info("marked: an information")
        pb_utils.Logger.log_warn("marked: a warning")
        pb_utils.Logger.log_error("marked: an error")
        pb_utils.Logger.log_verbose("marked: in detail")
        pb_utils.Logger.log("marked: by default")
        pb_utils.Logger.log("marked: a named level", pb_utils.Logger.WARNING)
        return texts(["logged"])


def texts(elements, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(elements, dtype=np.object_))], **more)


def failed(code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("it says so", code))
