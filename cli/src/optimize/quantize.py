"""Makes variants of an ONNX file with 8-bit weights by ONNX Runtime's own tools, for `trireme optimize`.

Reads JSON objects from standard input, one a line, and answers each with one line on standard output. The first one opens a file;
the others say in `do` what is wanted: `smooth`, `damage`, `quantize` or `sign`.

ONNX Runtime quantizes the activations before a matrix with one scale for all channels, so that a channel with large values costs the
others their precision. `smooth` makes a second base in which such channels are divided by a factor and the rows of the matrix
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
from onnxruntime.quantization import QuantType, quantize_dynamic

KINDS = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "smooth": QuantType.QInt8, "usmooth": QuantType.QUInt8}
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
            if node.op_type == "MatMul" and node.input[1] in weights:
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

    def quantize(self, output, kind, **which):
        if kind == "blocks":
            return self.in_blocks(self.base, output)
        quantize_dynamic(
            self.smoothed if kind.endswith("smooth") else self.base, output, weight_type=KINDS[kind], per_channel=True, op_types_to_quantize=["MatMul"],
            use_external_data_format=self.large, **which,
        )

    def leave_out(self, output, kind, names):
        """A variant without some matrices: those get weights in blocks where Python has what that needs, else they stay as they are."""
        self.quantize(output, kind, nodes_to_exclude=names)
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
            if node.name in self.matmuls and weights[node.input[1]].data_type == onnx.TensorProto.FLOAT:
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
        nodes = [part for node in model.graph.node for part in (*before.get(node.name, ()), node)]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        # A subgraph may use a matrix, too: where there is one, all of them are kept.
        nested = any(attribute.HasField("g") or attribute.graphs for node in nodes for attribute in node.attribute)
        gone = set() if nested else replaced - {name for node in nodes for name in node.input}
        kept = [tensor for tensor in model.graph.initializer if tensor.name not in gone]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
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
            self.quantize(path, ask["kind"], nodes_to_quantize=[name])
            found = self.results(self.load(path), ask["rows"])
            moved = [((a - b) ** 2).sum() / max((b ** 2).sum(), 1e-12) for a, b in zip(found, expected)]
            damage[name] = float(numpy.mean(moved))
            say({"progress": f"{number} of {len(self.matmuls)} matrices tried alone"})
        return {"damage": damage}


def best_factors(activations, matrices):
    """The factor of each channel with which 8 bits change the products least; `None` where factors do not pay."""
    matrix = numpy.concatenate(matrices, axis=1)
    highest = numpy.max([numpy.abs(rows).max(0) for rows in activations], axis=0).astype(numpy.float64)
    heaviest = numpy.abs(matrix).max(1).astype(numpy.float64)
    used = (highest > 0) & (heaviest > 0)
    if not used.any():
        return None
    products = [rows @ matrix for rows in activations]
    # Each token counts alike: a few tokens with large values must not decide alone.
    lengths = [numpy.maximum((product ** 2).sum(1), 1e-30) for product in products]

    def error(factors):
        rounded = rounded_matrix(matrix * factors[:, None])
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
    """Activations in 8 bits, as ONNX Runtime's DynamicQuantizeLinear makes them: one scale for all of them."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    return ((numpy.clip(numpy.rint(rows / scale) + zero, 0, 255) - zero) * scale).astype(numpy.float32)


def rounded_matrix(matrix):
    """Weights in 8 bits, with a scale for each column."""
    scales = numpy.maximum(numpy.abs(matrix).max(0), 1e-30) / 127
    return numpy.rint(matrix / scales) * scales


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
