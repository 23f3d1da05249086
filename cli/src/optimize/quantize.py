"""Makes variants of an ONNX file with 8-bit weights for ONNX Runtime, for `trireme optimize`.

Reads JSON objects from standard input, one a line, and answers each with one line on standard output. The first one opens a file;
the others say in `do` what is wanted: `smooth`, `damage`, `quantize` or `sign`.

A matrix multiplies activations of 8 bits, which are made when the model runs: each token's vector with a scale of its own. ONNX Runtime's own
quantizer has one scale for the whole run, with which the answer for a text depends on the texts that share its run, and a token with
large values costs all others their precision. Within a vector a channel with large values still does. `smooth` makes a second base in which such channels are divided by a factor and the rows of the matrix
multiplied by it, which changes nothing at full precision (SmoothQuant, https://arxiv.org/abs/2211.10438).
"""

import importlib.util
import json
import logging
import os
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import numpy
import onnx
import onnxruntime
from onnx.numpy_helper import from_array, to_array

# The weights' datatype, and the number that stands for 0.
KINDS = {"int8": (numpy.int8, 0), "uint8": (numpy.uint8, 128), "smooth": (numpy.int8, 0), "usmooth": (numpy.uint8, 128)}
# Activations are unsigned: products of unsigned with signed numbers are what processors have instructions for.
ZERO = 128
BLOCK = 128
# The quantizer of blocks needs one more package.
HAS_BLOCKS = importlib.util.find_spec("onnx_ir") is not None
# How much of the range of a channel moves from the activations into the weights: candidates, of which each matrix takes the best.
STRENGTHS = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
# A factor costs a multiplication of the activations: it has to take this part of the error away.
WORTH = 0.25
# Activations that are held in memory at a time.
HELD_BYTES = 512 << 20


class Variants:
    def __init__(self, ask):
        self.work, self.threads = ask["work"], ask["threads"]
        self.base = os.path.join(self.work, "base.onnx")
        model = onnx.load(ask["model"])
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.matmuls = {}
        for index, node in enumerate(model.graph.node):
            # Quantization leaves nodes out by their names.
            node.name = node.name or f"node_{index}"
            weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
            if weight is not None and len(weight.dims) == 2 and weight.data_type == onnx.TensorProto.FLOAT:
                self.matmuls[node.name] = int(numpy.prod(weights[node.input[1]].dims))
        large = model.ByteSize() > 1 << 30
        onnx.save(model, self.base, save_as_external_data=large, location="base.onnx_data")
        self.large = large
        self.smoothed = os.path.join(self.work, "smoothed.onnx")
        self.session = self.load(self.base)

    def load(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def quantize(self, output, kind, names):
        """Writes a variant in which the matrices of these nodes have 8 bits."""
        if kind == "blocks":
            return self.in_blocks(self.base, output)
        model = onnx.load(self.smoothed if kind.endswith("smooth") else self.base)
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        names, nodes, scales = set(names), [], {}
        constants = {"trireme_part": numpy.float32(1 / (255 - ZERO)), "trireme_least": numpy.float32(1e-30), "trireme_one": numpy.float32(1), "trireme_zero": numpy.uint8(ZERO)}
        model.graph.initializer.extend(from_array(value, name) for name, value in constants.items())
        for node in model.graph.node:
            if node.name not in names:
                nodes.append(node)
                continue
            if node.input[0] not in scales:
                # Nodes with the same input share its 8 bits.
                scales[node.input[0]] = scale = f"{node.name}_scale"
                nodes += of_activations(node, scale, model.opset_import)
            nodes += self.product(model, node, weights, KINDS[kind], scales[node.input[0]])
        replace(model, nodes, {node.input[1] for node in model.graph.node if node.name in names})
        if all(one.domain != "com.microsoft" for one in model.opset_import):
            model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, output, save_as_external_data=self.large, location=os.path.basename(output) + "_data")

    def product(self, model, node, weights, kind, scale):
        """The nodes that multiply activations of 8 bits by a matrix of 8 bits with a scale for each column."""
        (datatype, zero), made = kind, f"{node.name}_8_bits"
        # The matrix may have other uses, and other nodes may have it.
        matrix, columns = rounded_matrix(to_array(weights[node.input[1]]))
        parts = {made: (matrix + zero).astype(datatype), f"{made}_scale": columns.astype(numpy.float32), f"{made}_zero": numpy.full(len(columns), zero, datatype)}
        model.graph.initializer.extend(from_array(value, name) for name, value in parts.items())
        inputs = [f"{scale}_8_bits", made, "trireme_one", f"{made}_scale", "trireme_zero", f"{made}_zero"]
        return [
            onnx.helper.make_node("MatMulIntegerToFloat", inputs, [f"{made}_product"], domain="com.microsoft", name=f"{made}_product"),
            onnx.helper.make_node("Mul", [f"{made}_product", scale], [node.output[0]], name=made),
        ]

    def leave_out(self, output, kind, names):
        """A variant without some matrices: those get weights in blocks where Python has what that needs, else they stay as they are."""
        self.quantize(output, kind, self.matmuls.keys() - set(names))
        if names and HAS_BLOCKS:
            self.in_blocks(output, output)

    def in_blocks(self, path, output):
        """Weights of 8 bits with a scale for each block, and each row of activations quantized by itself: of all matrices that are
        not quantized yet."""
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        model = onnx.load(path)
        quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(output, self.large)

    def feed(self, session, row):
        """A row as the inputs of the graph."""
        types = {tensor.name: numpy.int32 if tensor.type == "tensor(int32)" else numpy.int64 for tensor in session.get_inputs()}
        return {name: numpy.array([row[name]], dtype=types[name]) for name in types}

    def results(self, session, rows):
        """One vector for each row: the mean of its tokens' vectors, or the model's only vector."""
        found = []
        for row in rows:
            first = session.run(None, self.feed(session, row))[0][0].astype(numpy.float64)
            found.append(first.mean(0) if first.ndim > 1 else first)
        return found

    def smooth(self, ask):
        """Writes the second base, by the activations of these rows; gives the number of matrices that it changes."""
        model = onnx.load(self.base)
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        groups = {}
        for node in model.graph.node:
            if node.name in self.matmuls:
                groups.setdefault(node.input[0], []).append(node)
        before, replaced, changed = {}, set(), 0
        for names, activations in self.activations(list(groups), weights, groups, ask["rows"]):
            for name in names:
                nodes = groups[name]
                factors = best_factors(activations[name], [to_array(weights[node.input[1]]) for node in nodes])
                if factors is not None:
                    replaced.update(node.input[1] for node in nodes)
                    before[nodes[0].name] = self.divide(model, name, nodes, weights, factors)
                    changed += len(nodes)
        replace(model, [part for node in model.graph.node for part in (*before.get(node.name, ()), node)], replaced)
        say({"progress": f"{changed} of {len(self.matmuls)} matrices are smoothed"})
        onnx.save(model, self.smoothed, save_as_external_data=self.large, location="smoothed.onnx_data")
        return {"smoothed": changed}

    def activations(self, names, weights, groups, rows):
        """The activations that enter matrices, some at a time: their names, and by name a list of arrays, one for each row."""
        tokens = sum(len(next(iter(row.values()))) for row in rows)
        width = max((weights[nodes[0].input[1]].dims[0] for nodes in groups.values()), default=1)
        many = max(1, HELD_BYTES // (4 * tokens * width))
        path = os.path.join(self.work, "watched.onnx")
        for start in range(0, len(names), many):
            part = names[start:start + many]
            watched = onnx.load(self.base, load_external_data=False)
            known = {output.name for output in watched.graph.output}
            watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in part if name not in known)
            onnx.save(watched, path)
            session, found = self.load(path), {name: [] for name in part}
            for row in rows:
                for name, array in zip(part, session.run(part, self.feed(session, row))):
                    found[name].append(array.reshape(-1, array.shape[-1]))
            yield part, found

    def divide(self, model, name, nodes, weights, factors):
        """Multiplies the rows of the nodes' matrices, and gives the node that divides their input."""
        divided, inverse = f"{name}_smoothed", f"{name}_smoothing"
        model.graph.initializer.append(from_array((1 / factors).astype(numpy.float32), inverse))
        for node in nodes:
            scaled = to_array(weights[node.input[1]]) * factors[:, None]
            node.input[0] = divided
            # The matrix may have other uses.
            node.input[1] = f"{node.name}_{node.input[1]}_smoothed"
            model.graph.initializer.append(from_array(scaled.astype(numpy.float32), node.input[1]))
        return [onnx.helper.make_node("Mul", [name, inverse], [divided], name=f"{nodes[0].name}_smoothing")]

    def damage(self, ask):
        """How far each matmul alone, quantized, moves the results: the mean square of the way, in lengths of the results."""
        expected = self.results(self.session, ask["rows"])
        path = os.path.join(self.work, "single.onnx")
        damage = {}
        for number, name in enumerate(self.matmuls, 1):
            self.quantize(path, ask["kind"], [name])
            found = self.results(self.load(path), ask["rows"])
            moved = [((a - b) ** 2).sum() / max((b ** 2).sum(), 1e-12) for a, b in zip(found, expected)]
            damage[name] = float(numpy.mean(moved))
            say({"progress": f"{number} of {len(self.matmuls)} matrices tried alone"})
        return {"damage": damage}


def of_activations(node, scale, opsets):
    """The nodes that make 8 bits of the node's input, with a scale for each of its vectors by the largest value."""
    (opset,) = (one.version for one in opsets if one.domain in ("", "ai.onnx"))
    given = node.input[0]
    # From 18 on the axes are an input; without them all axes would be reduced.
    over = {"axes": [-1]} if opset < 18 else {}
    axes = [] if over else [f"{scale}_axes"]
    make = lambda kind, inputs, output, **more: onnx.helper.make_node(kind, inputs, [output], name=output, **more)
    last = [] if over else [make("Constant", [], f"{scale}_axes", value_ints=[-1])]
    return [
        *last,
        make("ReduceMax", [given, *axes], f"{scale}_highest", keepdims=1, **over),
        make("ReduceMin", [given, *axes], f"{scale}_lowest", keepdims=1, **over),
        make("Neg", [f"{scale}_lowest"], f"{scale}_deepest"),
        make("Max", [f"{scale}_highest", f"{scale}_deepest", "trireme_least"], f"{scale}_largest"),
        make("Mul", [f"{scale}_largest", "trireme_part"], scale),
        make("Div", [given, scale], f"{scale}_steps"),
        make("QuantizeLinear", [f"{scale}_steps", "trireme_one", "trireme_zero"], f"{scale}_8_bits"),
    ]


def replace(model, nodes, replaced):
    """Gives the graph these nodes, and takes away the initializers of `replaced` that no node uses any more."""
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    # A subgraph may use a matrix, too: where there is one, all of them are kept.
    nested = any(attribute.HasField("g") or attribute.graphs for node in nodes for attribute in node.attribute)
    gone = set() if nested else set(replaced) - {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in gone]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def best_factors(activations, matrices):
    """The factor of each channel with which 8 bits change the products least; `None` where factors do not pay."""
    matrix = numpy.concatenate(matrices, axis=1)
    highest = numpy.max([numpy.abs(rows).max(0) for rows in activations], axis=0).astype(numpy.float64)
    heaviest = numpy.abs(matrix).max(1).astype(numpy.float64)
    used = (highest > 0) & (heaviest > 0)
    if not used.any():
        return None
    products = [rows @ matrix for rows in activations]
    # Each token counts alike: those with large values must not decide alone.
    lengths = [numpy.maximum((product ** 2).sum(1), 1e-30) for product in products]

    def error(factors):
        steps, columns = rounded_matrix(matrix * factors[:, None])
        rounded = steps * columns
        missed = ((rounded_rows(rows / factors) @ rounded - product) ** 2 for rows, product in zip(activations, products))
        return sum(float((way.sum(1) / length).sum()) for way, length in zip(missed, lengths))

    plain = error(numpy.ones(len(matrix), numpy.float32))
    best = None
    for strength in STRENGTHS:
        factors = numpy.ones(len(matrix))
        factors[used] = highest[used] ** strength / heaviest[used] ** (1 - strength)
        factors[used] /= numpy.exp(numpy.log(factors[used]).mean())
        factors = factors.astype(numpy.float32)
        left = error(factors)
        if best is None or left < best[0]:
            best = (left, factors)
    return best[1] if best[0] <= plain * (1 - WORTH) else None


def rounded_rows(rows):
    """Activations in 8 bits, with a scale for each row."""
    scales = numpy.maximum(numpy.abs(rows).max(1, keepdims=True), 1e-30) / (255 - ZERO)
    return (numpy.rint(rows / scales) * scales).astype(numpy.float32)


def rounded_matrix(matrix):
    """Weights in 8 bits, as whole numbers from -127 to 127, and the scale of each column."""
    scales = numpy.maximum(numpy.abs(matrix).max(0), 1e-30) / 127
    return numpy.rint(matrix / scales), scales


def sign(path, notes):
    """Leaves notes in the file's metadata, from where `trireme serve` reads them."""
    model = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(model, {**{prop.key: prop.value for prop in model.metadata_props}, **notes})
    onnx.save(model, path)
    return {}


def say(answer):
    out.write(json.dumps(answer) + "\n")
    out.flush()


def main():
    variants = None
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "open":
            variants = Variants(ask)
            say({"matmuls": variants.matmuls, "by": f"onnxruntime {onnxruntime.__version__}", "blocks": HAS_BLOCKS})
        elif ask["do"] == "smooth":
            say(variants.smooth(ask))
        elif ask["do"] == "damage":
            say(variants.damage(ask))
        elif ask["do"] == "quantize":
            variants.leave_out(ask["output"], ask["kind"], ask["leave_out"])
            say({})
        elif ask["do"] == "sign":
            say(sign(ask["path"], ask["notes"]))


# Libraries print to standard output; the answers keep it for themselves.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
main()
