"""Raw ONNX Runtime: the model's own speed on these CPUs, without a server.

It runs as its own process, which reads one JSON object a line (the measurement to make) and answers with one. `offline` runs
texts sorted by length in batches of about the given number of tokens, all of them or random pools of a size, as many as a server has in
flight; `lone` tokenizes, runs and pools one text at a time.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import threading
import time

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

MAX_LENGTH = 256


def read_lines(path):
    """The texts of each line: one, or two where the line is a JSON object with a `text_pair`."""
    with open(path) as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    objects = [json.loads(line) if line.startswith('{"') else {"text": line} for line in lines]
    return [[one[key] for key in ("text", "text_pair") if key in one] for one in objects]


def read_texts(path):
    return [texts[0] for texts in read_lines(path)]


class Raw:
    def __init__(self, options):
        self.tokenizer = Tokenizer.from_file(f"{options.model}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(options.max_length)
        self.texts = read_lines(options.texts)
        self.tokens = [self.tokenizer.encode(*texts) for texts in self.texts]
        self.path, self.openvino = f"{options.model}/model.onnx", options.openvino
        self.plugin = bool(self.openvino) and self.openvino.endswith(".so")
        self.properties = json.loads(options.properties)
        self.cpus, self.providers, self.device = options.cpus, options.providers, None
        if self.providers:
            self.device = "cpu" if self.providers[0][0] == "CPUExecutionProvider" else "cuda"
        if self.plugin:
            onnxruntime.register_execution_provider_library("OpenVINOExecutionProvider", self.openvino)
        self.narrow = [self.session(1) for _ in range(self.cpus)]
        self.wide = self.session(self.cpus)
        self.inputs = [one.name for one in self.wide.get_inputs()]

    def session(self, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False
        if self.providers:
            session = onnxruntime.InferenceSession(self.path, options, providers=self.providers)
            # A provider that cannot be loaded would be left out in silence.
            if (found := session.get_providers()[0]) != self.providers[0][0]:
                sys.exit(f"ONNX Runtime cannot load {self.providers[0][0]}, it would run on {found}")
            return session
        wanted = "OpenVINOExecutionProvider" if self.openvino else "CPUExecutionProvider"
        # If they were pinned, the threads of all sessions would be on the first CPU.
        properties = {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO", **self.properties}
        settings = {"load_config": json.dumps({"CPU": properties})} if self.openvino else {}
        if self.openvino and not self.plugin:
            providers = [(wanted, {"device_type": "CPU", **settings})]
            return onnxruntime.InferenceSession(self.path, options, providers=providers)
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == wanted]
        options.add_provider_for_devices(devices[:1], settings)
        return onnxruntime.InferenceSession(self.path, options)

    def feed(self, rows):
        length = max(map(len, rows))
        ids, mask, types = np.zeros((3, len(rows), length), np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)], types[row, : len(tokens)] = tokens.ids, 1, tokens.type_ids
        everything = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: everything[name] for name in self.inputs}

    def on_device(self, feed):
        """The inputs of a run on the device of `--providers`."""
        if not self.device:
            return feed
        return {name: onnxruntime.OrtValue.ortvalue_from_numpy(value, self.device, 0) for name, value in feed.items()}

    def run(self, session, feed):
        """A run. With `--providers` its outputs stay on the device."""
        if not self.device:
            return session.run(None, feed)
        binding = session.io_binding()
        for name, value in feed.items():
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, self.device)
        session.run_with_iobinding(binding)

    def batches(self, budget, pool):
        """The texts in batches of about `budget` tokens with padding. With `pool`, which is a number of texts, each batch is of one pool:
        the texts are shuffled, always in the same way, cut into pools, and sorted in each."""
        tokens, size = list(self.tokens), pool or len(self.tokens)
        random.Random(0).shuffle(tokens)
        batches = []
        for begin in range(0, len(tokens), size):
            batch = []
            for one in sorted(tokens[begin : begin + size], key=len):
                if batch and (len(batch) + 1) * len(one) > budget:
                    batches.append(batch)
                    batch = []
                batch.append(one)
            batches.append(batch)
        return batches

    def offline(self, budget, layout, seconds, pool=None):
        """Runs batches for this time, in an order that has all lengths early. Each session counts the tokens of its own texts in its own time, and
        texts per second are those of texts of the mean length: so a measurement may end before it has been through all texts."""
        batches = self.batches(budget, pool)
        padded = sum(len(batch) * max(map(len, batch)) for batch in batches) / sum(map(len, self.tokens))
        random.Random(1).shuffle(batches)
        feeds = [(sum(map(len, batch)), self.on_device(self.feed(batch))) for batch in batches]
        sessions = self.narrow if layout == "narrow" else [self.wide]
        if self.device:
            # A first run with a shape allocates, and may choose or compile kernels.
            for session in sessions:
                for _, feed in feeds:
                    self.run(session, feed)
        work, rates, done = itertools.cycle(feeds), [], []
        started, cpu = time.perf_counter(), time.process_time()

        def run(session):
            tokens = 0
            while (elapsed := time.perf_counter() - started) < seconds:
                count, feed = next(work)
                self.run(session, feed)
                tokens += count
            rates.append(tokens / elapsed)
            done.append(tokens)

        threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cpu, mean = time.process_time() - cpu, sum(map(len, self.tokens)) / len(self.tokens)
        return {
            "texts_per_second": sum(rates) / mean, "tokens_per_second": sum(rates), "cpu_us": 1e6 * cpu * mean / sum(done),
            "padded_by_real": padded,
        }

    def lone(self, seconds, count=None):
        texts = self.texts[:count]
        latencies, until, index = [], time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            started = time.perf_counter()
            feed = self.feed([self.tokenizer.encode(*texts[index % len(texts)])])
            states = self.wide.run(None, feed)[0]
            mask = feed["attention_mask"][:, :, None].astype(np.float32)
            pooled = (states * mask).sum(1) / mask.sum(1)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            latencies.append(time.perf_counter() - started)
            index += 1
        return {"p50_ms": 1e3 * statistics.median(latencies)}

    def embed(self, count):
        """Embeddings of the first texts, to compare two providers."""
        vectors = []
        for texts in self.texts[:count]:
            feed = self.feed([self.tokenizer.encode(*texts)])
            pooled = self.wide.run(None, feed)[0][0].mean(0)
            vectors.append((pooled / np.linalg.norm(pooled)).tolist())
        return {"vectors": vectors}


def providers(text):
    """Pairs of a name and its options, as ONNX Runtime takes them."""
    return [(name, settings) for name, settings in json.loads(text)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--max-length", type=int, default=MAX_LENGTH, help="tokens of a text at most")
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--openvino", help="run on OpenVINO: the plugin's library, or anything else where it is built in")
    parser.add_argument("--properties", default="{}", help="OpenVINO's properties as JSON")
    parser.add_argument("--providers", type=providers, help="run on these, JSON pairs of name and options, with inputs and outputs on the first one's device")
    raw = Raw(parser.parse_args())
    print(json.dumps({"ready": onnxruntime.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(raw, request.pop("what"))(**request)), flush=True)


if __name__ == "__main__":
    main()
