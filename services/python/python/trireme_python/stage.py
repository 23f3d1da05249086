"""Serves a function from arrays to arrays, as a program of backend `process`."""

import inspect

from trireme_python.errors import TritonModelException
from trireme_python.host import main
from trireme_python.responses import InferenceResponse
from trireme_python.tensors import Tensor


def stage(function):
    """Serves a function whose parameters are the names of inputs, and which gives a dictionary of outputs by name. As a
    decorator in the file that is run it returns when the worker ends; in a module that is imported it changes nothing."""
    if function.__module__ != "__main__":
        return function
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    class Stage:
        """The function as a model."""

        def execute(self, requests):
            return [self.respond(request) for request in requests]

        def respond(self, request):
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            outputs = function(**{name: array for name, array in arrays.items() if takes_all or name in parameters})
            if not isinstance(outputs, dict):
                raise TritonModelException(
                    f"{function.__name__} gave a {type(outputs).__name__}, expected a dictionary of arrays by names of outputs"
                )
            return InferenceResponse([Tensor(name, array) for name, array in outputs.items()])

    main(Stage)
    return function
