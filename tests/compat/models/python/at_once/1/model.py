"""An `async` execute, which sends requests to other models that run at the same time."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        (request,) = requests
        text = request.inputs()[0].as_numpy()[0].decode()
        if text == "raises":
            raise pb_utils.TritonModelException("it was raised")
        return [await getattr(self, text)()]

    async def sleeps(self):
        await asyncio.sleep(0.01)
        return texts(["slept"])

    async def gathers(self):
        responses = await asyncio.gather(*(ask("echo", str(number)).async_exec() for number in range(4)))
        return texts([text for response in responses for text in said(response)])

    async def several(self):
        responses = await ask("counts", "2").async_exec(decoupled=True)
        return texts([text for response in responses for text in said(response)])

    async def fails(self):
        return texts(said(await ask("nobody", "a").async_exec()))


def ask(model, text):
    tensor = pb_utils.Tensor("IN", np.array([text.encode()], dtype=np.object_))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor])


def said(response):
    if response.has_error():
        return ["error", response.error().message()]
    return [text.decode() for tensor in response.output_tensors() for text in tensor.as_numpy().ravel()]


def texts(elements):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(elements, dtype=np.object_))])
