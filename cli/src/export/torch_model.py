"""Makes the ONNX file of a TorchScript or torch.export file in a model repository, for `trireme export`, and compares served answers with
those of torch.

Standard input is a JSON object: `step` ("make" or "compare"); `file`, a TorchScript file or a .pt2 of `torch.export.save`;
`inputs` and `outputs` of config.pbtxt, each with `name`, `datatype` (of the v2 protocol) and `dims` (without the batch dimension, -1 for
any size; those that the model takes, and as `client_dims` those of clients where a `reshape` has others); `max_batch_size`. "make" writes the graph to `output`; "compare" asks the model at `url` (http://HOST:PORT/v2/models/NAME).
Standard output is a JSON object: `by`, torch and its version; of "make" `kind`, of "compare" `requests`, `lowest` (a cosine), `difference` (the
largest one) and `worst` (the output it is in). `refused`, where there is no result, says why.
"""

import inspect
import json
import math
import os
import re
import sys
import urllib.error
import urllib.request
import warnings
import zipfile

warnings.simplefilter("ignore")

# Sizes that are tried for dimensions of any size: first those that most models take.
SIZES = (16, 32, 64, 128, 224, 256, 384, 512, 8, 4, 2, 1)
# Sizes beside the first one that takes; a graph that kept the first one shows it here.
OTHER_SIZES = (21, 7, 48, 96, 320) + SIZES
# Integers below these are tried, for inputs that look rows of a table up; a mask takes none but 0 and 1.
HIGHS = (1000, 100, 10, 2)
# The largest file with its weights inside: protobuf's limit is 2 GiB.
INSIDE_BYTES = 1_800_000_000


class Refused(Exception):
    """Why there is no result, in words for the person who asked for it."""


def line(error):
    """The line of an exception that says most: the first, or the last below the traceback of a script."""
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    place = -1 if "failed in the TorchScript interpreter" in str(error) else 0
    return f"{type(error).__name__}: {lines[place] if lines else 'no message'}"


def datatypes(torch):
    found = {
        "BOOL": torch.bool, "UINT8": torch.uint8, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
        "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64,
    }
    return found


def places(names, arguments):
    """The place of each name among the model's arguments or results, by the rules of Triton's backend `pytorch`: names of
    arguments, or else NAME__INDEX, or else the order of the configuration. Names of Triton's platform `torch_aoti` are arguments."""
    if all(name in arguments for name in names):
        return [arguments.index(name) for name in names]
    indices = [re.fullmatch(r".*?__(\d+)", name) for name in names]
    if all(indices):
        return [int(index[1]) for index in indices]
    return list(range(len(names)))


def checked(found, count, kind, names):
    """These places, if each is one of `count` and none is there twice."""
    if len(set(found)) != len(found) or any(place >= count for place in found):
        raise Refused(f"config.pbtxt declares the {kind}s {', '.join(names)}, the model has {count}: name them {kind.upper()}__0 to "
                      f"{kind.upper()}__{count - 1}, or by its own names")
    return found


class Script:
    """A TorchScript file."""

    kind = "TorchScript"
    sizes = ()

    def __init__(self, torch, ask):
        self.torch, self.outputs = torch, [output["name"] for output in ask["outputs"]]
        self.module = torch.jit.load(ask["file"], map_location="cpu")
        try:
            self.module.eval()
        except (AttributeError, RuntimeError):
            pass  # A frozen module has one mode only.
        arguments = self.module.forward.schema.arguments[1:]
        names = [given["name"] for given in ask["inputs"]]
        self.keys = names if len(arguments) == 1 and arguments[0].type.kind() == "DictType" else None
        if self.keys is None:
            self.places = checked(places(names, [argument.name for argument in arguments]), len(arguments), "input", names)
            left = [argument.name for place, argument in enumerate(arguments)
                    if place not in self.places and not argument.has_default_value()]
            if left or sorted(self.places) != list(range(len(names))):
                missing = left or [argument.name for place, argument in enumerate(arguments) if place not in self.places]
                raise Refused(f"config.pbtxt declares no input for {', '.join(missing)} of "
                              f"forward({', '.join(argument.name for argument in arguments)})")

    def __call__(self, tensors):
        """The configured outputs for the configured inputs, both in the configuration's order."""
        return self.call(self.module, tensors)

    def call(self, module, tensors):
        if self.keys is not None:
            found = module(dict(zip(self.keys, tensors)))
        else:
            found = module(*(tensors[self.places.index(place)] for place in sorted(self.places)))
        if isinstance(found, dict):
            missing = [name for name in self.outputs if name not in found]
            if missing:
                raise Refused(f"the model returns a dictionary of {', '.join(found)}, without the output {missing[0]} of config.pbtxt")
            return tuple(found[name] for name in self.outputs)
        found = (found,) if isinstance(found, self.torch.Tensor) else tuple(found)
        return tuple(found[place] for place in checked(places(self.outputs, []), len(found), "output", self.outputs))

    def write(self, example, ask):
        torch, call = self.torch, self.call
        inputs, outputs = ask["inputs"], ask["outputs"]

        class Graph(torch.nn.Module):
            """The model as a function of its inputs in order."""

            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, *tensors):
                return call(self.module, tensors)

        batched = 1 if ask["max_batch_size"] else 0
        axes = {}
        for tensor in inputs + outputs:
            own = {axis + batched: f"{tensor['name']}_{axis + batched}" for axis, dim in enumerate(tensor["dims"]) if dim < 0}
            axes[tensor["name"]] = {**({0: "batch"} if batched else {}), **own}
        options = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
        # A trace keeps the loops and branches of the script inside it.
        graph = torch.jit.trace(Graph(self.module), tuple(example), check_trace=False)
        torch.onnx.export(
            graph, tuple(example), ask["output"], input_names=[given["name"] for given in inputs],
            output_names=[given["name"] for given in outputs], dynamic_axes=axes, opset_version=17, **options,
        )


class Exported:
    """A file of `torch.export.save`."""

    kind = "torch.export"

    def __init__(self, torch, ask):
        self.torch = torch
        self.program = torch.export.load(ask["file"])
        self.module = self.program.module()
        self.spec, results = self.program.call_spec.in_spec, self.program.call_spec.out_spec
        arguments, result_paths = list(paths(self.spec)), list(paths(results))
        names = [given["name"] for given in ask["inputs"]]
        own = [name for name in self.program.graph_signature.user_inputs]
        # The flat inputs have two names: Triton's (ARGS[0]) and that of the argument.
        by_path = places(names, arguments)
        found = by_path if all(name in arguments for name in names) else places(names, own)
        self.places = checked(found, len(own), "input", names)
        if len(names) != len(own):
            raise Refused(f"config.pbtxt declares {len(names)} inputs, the model has {len(own)}: {', '.join(own)}")
        self.outputs = [given["name"] for given in ask["outputs"]]
        self.count = len(result_paths)
        self.results = checked(places(self.outputs, result_paths), self.count, "output", self.outputs)
        nodes = {node.name: node.meta["val"].shape for node in self.program.graph.nodes if node.op == "placeholder"}
        self.shapes = [tuple(nodes[own[place]]) for place in self.places]
        # Sizes that the program was exported for, and takes no others.
        self.sizes = tuple(dim for shape in self.shapes for dim in shape if isinstance(dim, int))
        if ask["max_batch_size"]:
            self.check_batch(ask)

    def ordered(self, tensors):
        return [tensors[self.places.index(place)] for place in range(len(self.places))]

    def __call__(self, tensors):
        pytree = self.torch.utils._pytree
        arguments, named = pytree.tree_unflatten(self.ordered(tensors), self.spec)
        found = pytree.tree_leaves(self.module(*arguments, **named))
        return tuple(found[place] for place in self.results)

    def write(self, _, ask):
        weights = sum(tensor.nbytes for tensor in self.program.state_dict.values())
        names = [None] * len(self.places)
        for given, place in zip(ask["inputs"], self.places):
            names[place] = given["name"]
        outputs = [f"not_served_{place}" for place in range(self.count)]
        for name, place in zip(self.outputs, self.results):
            outputs[place] = name
        self.torch.onnx.export(
            self.program, (), ask["output"], input_names=names, output_names=outputs, dynamo=True, external_data=weights > INSIDE_BYTES,
            verbose=False,
        )

    def check_batch(self, ask):
        for given, shape in zip(ask["inputs"], self.shapes):
            if not shape or isinstance(shape[0], int):
                raise Refused(
                    f"{os.path.basename(ask['file'])} was exported for the shape [{', '.join(map(str, shape))}] of '{given['name']}', while max_batch_size "
                    f"is {ask['max_batch_size']}: export it again with dynamic_shapes that have torch.export.Dim('batch') in place 0, or "
                    "write max_batch_size: 0 and the whole shapes into config.pbtxt"
                )


def paths(spec, name=None):
    """The names of a tree's leaves as Triton's platform `torch_aoti` has them: ARGS[0], KWARGS[mask], RESULT[logits]."""
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    leaf = not children and spec.type is None
    if name is None and not leaf and spec.type is tuple and len(children) == 2 and children[1].type is dict:
        yield from paths(children[0], "ARGS")
        yield from paths(children[1], "KWARGS")
        return
    name = name or "RESULT"
    if leaf or spec.is_leaf():
        yield name
        return
    keys = spec.context if spec.type is dict else range(len(children))
    for key, child in zip(keys, children):
        yield from paths(child, f"{name}[{key}]")


def opened(torch, ask):
    """The model in the file, by what the file holds."""
    file = ask["file"]
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{file} is neither TorchScript nor a file of torch.export.save: {line(error)}") from None
    if any("/aotinductor/" in name for name in names):
        raise Refused(f"{file} was compiled for one kind of machine (AOTInductor) and holds no graph: write the program that it was compiled "
                      "from with torch.export.save(program, FILE), and export that")
    if any("/code/" in name for name in names):
        kind = Script
    elif any(name.endswith(("serialized_exported_program.json", "archive_format")) or "/models/" in name for name in names):
        kind = Exported
    else:
        raise Refused(f"{file} was written by torch.save and holds weights or a pickled module, which needs its class: trace it with "
                      "torch.jit.trace(module, example).save(FILE), or torch.export.save(torch.export.export(module, example), FILE)")
    try:
        return kind(torch, ask)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"torch {torch.__version__} cannot load {file}: {line(error)}") from None


class Samples:
    """Inputs that the model takes, found by trying it."""

    def __init__(self, torch, model, ask):
        self.torch, self.model, self.ask = torch, model, ask
        self.types = [datatypes(torch).get(given["datatype"]) for given in ask["inputs"]]
        unknown = [given["name"] for given, kind in zip(ask["inputs"], self.types) if kind is None]
        if unknown:
            raise Refused(f"the input '{unknown[0]}' has a datatype that torch has no tensors of")
        self.highs = [1] * len(self.types)
        self.fault = None
        self.most = ask["max_batch_size"] or 1
        self.batch, self.size = self.first()
        self.raise_highs()

    def tensors(self, batch, size, highs=None):
        torch, made = self.torch, []
        generator = torch.Generator().manual_seed(batch * 1000 + size)
        for given, kind, high in zip(self.ask["inputs"], self.types, highs or self.highs):
            shape = [batch] if self.ask["max_batch_size"] else []
            shape += [size if dim < 0 else dim for dim in given["dims"]]
            if kind.is_floating_point:
                made.append(torch.rand(shape, generator=generator).to(kind))
            elif kind is torch.bool or high == 1:
                made.append(torch.ones(shape, dtype=kind))
            else:
                tensor = torch.randint(0, high, shape, generator=generator)
                if shape and shape[-1] > 1:
                    tensor[..., 0] = 1  # A mask has at least one token.
                made.append(tensor.to(torch.uint8 if kind is torch.uint8 and high > 255 else kind))
        return made

    def run(self, tensors):
        """The model's answers; None where it fails."""
        try:
            with self.torch.no_grad():
                return self.model([tensor.clone() for tensor in tensors])
        except Refused:
            raise
        except Exception as error:
            self.fault = self.fault or line(error)
            return None

    def first(self):
        any_size = any(dim < 0 for given in self.ask["inputs"] for dim in given["dims"])
        for size in (*self.model.sizes, *SIZES) if any_size else SIZES[:1]:
            # Two rows, because a trace of one may drop its dimension.
            for batch in (2, 1):
                if self.run(self.tensors(batch, size)) is not None:
                    return batch, size
        shapes = ", ".join(f"{given['name']} {given['datatype']} {given['dims']}" for given in self.ask["inputs"])
        raise Refused(f"the model takes none of the shapes that config.pbtxt allows ({shapes}): {self.fault}")

    def raise_highs(self):
        for place, kind in enumerate(self.types):
            if kind.is_floating_point or kind is self.torch.bool:
                continue
            for high in HIGHS:
                if high > 127 and kind in (self.torch.int8, self.torch.uint8):
                    continue
                tried = self.highs[:place] + [high] + self.highs[place + 1 :]
                found = self.run(self.tensors(self.batch, self.size, tried))
                if found is not None and all(bool(self.torch.isfinite(output).all()) for output in found if output.is_floating_point()):
                    self.highs = tried
                    break

    def all(self):
        """Inputs of several shapes, each with what torch answers."""
        sizes = [self.size] + [size for size in OTHER_SIZES if size != self.size]
        batches = [batch for batch in (1, 2, 3) if batch <= self.most]
        found = []
        for batch in batches:
            others = 0
            for size in sizes:
                tensors = self.tensors(batch, size)
                answer = self.run(tensors)
                if answer is not None:
                    found.append((tensors, answer))
                    others += size != self.size
                if others == 2 or not any(dim < 0 for given in self.ask["inputs"] for dim in given["dims"]):
                    break
        if not found:
            raise Refused(f"the model takes no request of config.pbtxt: {self.fault}")
        return found


def make(torch, ask):
    model = opened(torch, ask)
    samples = Samples(torch, model, ask)
    two = samples.run(samples.tensors(2, samples.size)) if ask["max_batch_size"] else ()
    if two is None or any(output.shape[:1] != (2,) for output in two):
        fault = samples.fault if two is None else f"its outputs have the shapes {', '.join(str(list(output.shape)) for output in two)} then"
        whole = ", ".join(f"{given['name']} dims: {[1, *given['dims']]}" for given in ask["inputs"] + ask["outputs"])
        raise Refused(f"the model takes one row at a time and no batch of 2, while max_batch_size is {samples.most} ({fault}): write "
                      f"max_batch_size: 0 and the whole shapes into config.pbtxt ({whole})")
    example = samples.tensors(samples.batch, samples.size)
    outputs = samples.run(example)
    for given, output in zip(ask["outputs"], outputs):
        kind = datatypes(torch).get(given["datatype"])
        if output.dtype is not kind:
            raise Refused(f"the model's output '{given['name']}' is {output.dtype}, config.pbtxt says {given['datatype']}")
        own = list(output.shape[1 if ask["max_batch_size"] else 0 :])
        if len(own) != len(given["dims"]) or any(dim not in (-1, size) for dim, size in zip(given["dims"], own)):
            row = " of a row" if ask["max_batch_size"] else ""
            raise Refused(f"the model's output '{given['name']}' has the shape {own}{row}, config.pbtxt says dims {given['dims']}")
    try:
        with torch.no_grad():
            model.write(example, ask)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"torch {torch.__version__} cannot write {ask['file']} as ONNX: {line(error)}") from None
    return {"kind": model.kind}


def raw(torch, tensor):
    """The bytes of a tensor, without numpy."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def ask_server(torch, ask, tensors):
    """The served outputs by name."""
    names = {kind: name for name, kind in datatypes(torch).items()}
    tensors = [as_clients_have(given, tensor, ask) for given, tensor in zip(ask["inputs"], tensors)]
    parts = [raw(torch, tensor) for tensor in tensors]
    inputs = [
        {"name": given["name"], "shape": list(tensor.shape), "datatype": names[tensor.dtype], "parameters": {"binary_data_size": len(part)}}
        for given, tensor, part in zip(ask["inputs"], tensors, parts)
    ]
    outputs = [{"name": given["name"], "parameters": {"binary_data": True}} for given in ask["outputs"]]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    request = urllib.request.Request(f"{ask['url']}/infer", head + b"".join(parts))
    request.add_header("Inference-Header-Content-Length", str(len(head)))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=600) as answer:
            body, length = answer.read(), int(answer.headers["Inference-Header-Content-Length"])
    except urllib.error.HTTPError as error:
        return None, error.read().decode(errors="replace")
    found, start = {}, length
    for output in json.loads(body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        kind = datatypes(torch)[output["datatype"]]
        if size:
            values = torch.frombuffer(bytearray(body[start : start + size]), dtype=kind)
        else:
            values = torch.empty(0, dtype=kind)
        found[output["name"]] = values.reshape(output["shape"])
        start += size
    return found, None


def as_clients_have(given, tensor, ask):
    """A tensor of the model in the shape in which clients send or get it."""
    dims = given.get("client_dims")
    if dims is None:
        return tensor
    if any(dim < 0 for dim in dims):
        raise Refused(f"'{given['name']}' has a reshape with dimensions of any size, whose requests are not made up here")
    return tensor.reshape([*tensor.shape[:1], *dims] if ask["max_batch_size"] else dims)


def likeness(torch, served, expected):
    """The cosine of two tensors, and their largest difference; integers are alike or not."""
    if served.shape != expected.shape:
        return 0.0, math.inf
    a, b = served.double().reshape(-1), expected.double().reshape(-1)
    # Two values that are no numbers count as equal.
    both = torch.isnan(a) & torch.isnan(b) | (a == b)
    difference = float((a - b).masked_fill(both, 0).abs().max()) if a.numel() else 0.0
    if difference == 0:
        return 1.0, 0.0
    if not expected.is_floating_point():
        return 0.0, difference
    lengths = float(a.norm() * b.norm())
    return (float(a @ b) / lengths if lengths else 0.0), difference


def compare(torch, ask):
    samples = Samples(torch, opened(torch, ask), ask)
    lowest, largest, worst, requests = 1.0, 0.0, "", 0
    for tensors, expected in samples.all():
        served, fault = ask_server(torch, ask, tensors)
        shapes = ", ".join(f"{given['name']} {list(tensor.shape)}" for given, tensor in zip(ask["inputs"], tensors))
        if fault:
            return {"requests": requests, "lowest": 0.0, "difference": None, "worst": f"the request {shapes}, which torch answers, failed: {fault}"}
        requests += 1
        for given, wanted in zip(ask["outputs"], expected):
            wanted = as_clients_have(given, wanted, ask)
            cosine, difference = likeness(torch, served[given["name"]], wanted)
            largest = max(largest, difference)
            if not cosine >= lowest:
                lowest = cosine
                worst = f"{given['name']} {list(served[given['name']].shape)} for {shapes}; torch gives {list(wanted.shape)}"
    return {"requests": requests, "lowest": lowest, "difference": largest if math.isfinite(largest) else None, "worst": worst}


def main():
    ask = json.load(sys.stdin)
    # Exporters write to standard output, too: their lines go to standard error, and the answer has standard output for itself.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        try:
            import torch
        except ImportError as error:
            raise Refused(f"{sys.executable} has no torch ({error}): name a Python that has it by --python") from None
        found = (make if ask["step"] == "make" else compare)(torch, ask)
        found["by"] = f"torch {torch.__version__}"
    except Refused as refused:
        found = {"refused": str(refused)}
    answer.write(json.dumps(found))
    answer.close()


if __name__ == "__main__":
    main()
