"""Makes variants of an ONNX file with 8-bit weights by ONNX Runtime's own tools, for `trireme optimize`.

Reads JSON objects from standard input, one a line, and answers each with one line on standard output. The first one opens a file;
the others say in `do` what is wanted: `damage`, `quantize` or `sign`.
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
from onnxruntime.quantization import QuantType, quantize_dynamic

KINDS = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}
BLOCK = 128


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
        self.session = self.load(self.base)

    def load(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def quantize(self, output, kind, **which):
        if kind == "blocks":
            return self.in_blocks(output)
        quantize_dynamic(
            self.base, output, weight_type=KINDS[kind], per_channel=True, op_types_to_quantize=["MatMul"],
            use_external_data_format=self.large, **which,
        )

    def in_blocks(self, output):
        """Weights of 8 bits with a scale for each block, and each row of activations quantized by itself."""
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        model = onnx.load(self.base)
        quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(output, self.large)

    def results(self, session, rows):
        """One vector for each row: the mean of its tokens' vectors, or the model's only vector."""
        known = {tensor.name: tensor.type for tensor in session.get_inputs()}
        found = []
        for row in rows:
            feed = {
                name: numpy.array([row[name]], dtype=numpy.int32 if known[name] == "tensor(int32)" else numpy.int64)
                for name in known
            }
            first = session.run(None, feed)[0][0].astype(numpy.float64)
            found.append(first.mean(0) if first.ndim > 1 else first)
        return found

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
            # The quantizer of blocks needs one more package.
            blocks = importlib.util.find_spec("onnx_ir") is not None
            say({"matmuls": variants.matmuls, "by": f"onnxruntime {onnxruntime.__version__}", "blocks": blocks})
        elif ask["do"] == "damage":
            say(variants.damage(ask))
        elif ask["do"] == "quantize":
            variants.quantize(ask["output"], ask["kind"], nodes_to_exclude=ask["leave_out"])
            say({})
        elif ask["do"] == "sign":
            say(sign(ask["path"], ask["notes"]))


# Libraries print to standard output; the answers keep it for themselves.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
main()
