#!/usr/bin/env python3
"""Plain loops over a model's ONNX files, to compare the server with: greedy, one text at a time, and static batches that
end with their longest row.

    bench/generation.py DIRECTORY [--texts 64] [--batch 8] [--threads N] [--trireme BINARY | --url URL --model NAME]

DIRECTORY is a version's directory: encoder_model.onnx, decoder_model.onnx, decoder_with_past_model.onnx, config.json.
Texts are random ids of mixed lengths; each is given its own number of new ids (the same on both sides), so that output
lengths are mixed whatever the model says. The same texts go to a server over the v2 protocol, 16 requests at a time:
one that `trireme serve` of the BINARY is started for, or one that runs. Tokens per second, their ratios and the time to
the first token are printed. Needs numpy and onnxruntime (.tools/python has both).
"""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime


class Model:
    """The greedy loop of optimum's ORTModelForSeq2SeqLM: the cache goes from one run's outputs to the next's inputs."""

    def __init__(self, directory, suffix, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = lambda name: onnxruntime.InferenceSession(
            str(directory / f"{name}{suffix}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.encoder, self.first, self.next = map(
            session, ["encoder_model", "decoder_model", "decoder_with_past_model"]
        )
        configs = [json.loads((directory / name).read_text()) for name in ("config.json", "generation_config.json")]
        self.config = configs[0] | configs[1]

    def run(self, session, values):
        names = {each.name for each in session.get_inputs()}
        outputs = session.run(None, {name: value for name, value in values.items() if name in names})
        return dict(zip((each.name for each in session.get_outputs()), outputs))

    def generate(self, texts, counts):
        """Generates as many new ids for each text as `counts` says; the batch ends with the largest of them."""
        longest = max(map(len, texts))
        pad = self.config["pad_token_id"]
        ids = np.array([text + [pad] * (longest - len(text)) for text in texts], dtype=np.int64)
        mask = np.array([[1] * len(text) + [0] * (longest - len(text)) for text in texts], dtype=np.int64)
        states = next(iter(self.run(self.encoder, {"input_ids": ids, "attention_mask": mask}).values()))
        kept = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        ids = np.full((len(texts), 1), self.config["decoder_start_token_id"], dtype=np.int64)
        session, sequences = self.first, []
        ends = self.config["eos_token_id"]
        for _ in range(max(counts)):
            outputs = self.run(session, kept | {"input_ids": ids})
            session = self.next
            logits = outputs["logits"][:, -1, :]
            logits[:, ends] = -np.inf
            ids = logits.argmax(-1)[:, None]
            sequences.append(ids)
            for name, value in outputs.items():
                if name.startswith("present"):
                    kept[name.replace("present", "past_key_values")] = value
        rows = np.concatenate(sequences, 1).tolist()
        return [row[:count] for row, count in zip(rows, counts)]


def loop(model, work, batch):
    started = time.perf_counter()
    answers = []
    for first in range(0, len(work), batch):
        chunk = work[first : first + batch]
        answers += model.generate([text for text, _ in chunk], [count for _, count in chunk])
    return sum(count for _, count in work) / (time.perf_counter() - started), answers


def serve(url, name, work, concurrency):
    """Tokens per second of a server, and its answers."""
    answers, position, lock, faults = [None] * len(work), iter(range(len(work))), threading.Lock(), []

    def client():
        while not faults:
            with lock:
                index = next(position, None)
            if index is None:
                return
            text, count = work[index]
            body = {
                "inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, len(text)], "data": text}],
                "outputs": [{"name": "generated_indices"}],
                "parameters": {"max_new_tokens": count, "min_new_tokens": count, "num_beams": 1},
            }
            request = urllib.request.Request(f"{url}/v2/models/{name}/infer", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=600) as reply:
                    answers[index] = json.load(reply)["outputs"][0]["data"][1:]
            except Exception as error:
                faults.append(error)

    started = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return sum(count for _, count in work) / (time.perf_counter() - started), answers


def first_token(url, name, work):
    """Median seconds to an answer of one new id, one request at a time."""
    times = []
    for text, _ in work[:16]:
        started = time.perf_counter()
        serve(url, name, [(text, 1)], 1)
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


@contextlib.contextmanager
def server(binary, directory, suffix, threads):
    """Runs `trireme serve` on a repository with the model; yields its URL."""
    with tempfile.TemporaryDirectory() as repository:
        model = Path(repository) / "generation"
        model.mkdir()
        (model / "1").symlink_to(directory.resolve(), target_is_directory=True)
        values = {"file_suffix": suffix} | ({"intra_op_thread_count": threads} if threads else {})
        parameters = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
        )
        (model / "config.pbtxt").write_text(f'backend: "generation"\n{parameters}')
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        command = [binary, "serve", "--model-repository", repository, "--http-port", str(port), "--allow-grpc=false"]
        with open(Path(repository) / "log", "w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
            try:
                for _ in range(600):
                    with contextlib.suppress(OSError):
                        if urllib.request.urlopen(f"{url}/v2/health/ready").status == 200:
                            break
                    if process.poll() is not None:
                        log.seek(0)
                        raise SystemExit(f"the server stopped:\n{log.read()}")
                    time.sleep(0.1)
                yield url
            finally:
                process.terminate()
                process.wait(40)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--suffix", default="", help="of the files: _quantized")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=0, help="most new ids; by default what the model can")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of ONNX Runtime; 0 is one for each CPU")
    parser.add_argument("--trireme", help="the trireme binary, to start a server of")
    parser.add_argument("--url", help="a server, as http://127.0.0.1:8000")
    parser.add_argument("--model", help="the model's name there")
    parser.add_argument("--concurrency", type=int, default=16)
    arguments = parser.parse_args()

    model = Model(arguments.directory, arguments.suffix, arguments.threads)
    choose = random.Random(arguments.seed)
    longest = arguments.longest or min(64, model.config.get("max_position_embeddings", 64) - 2)
    vocabulary = model.config["vocab_size"]
    work = [
        ([choose.randrange(4, vocabulary - 8) for _ in range(choose.randint(4, 20))], choose.randint(4, longest))
        for _ in range(arguments.texts)
    ]
    model.generate(*zip(*work[:2]))
    rates = {}
    rates["one at a time"], alone = loop(model, work, 1)
    rates[f"static batches of {arguments.batch}"], _ = loop(model, work, arguments.batch)
    if arguments.trireme:
        running = server(arguments.trireme, arguments.directory, arguments.suffix, arguments.threads)
        name = "generation"
    else:
        running, name = contextlib.nullcontext(arguments.url), arguments.model
    with running as url:
        if url:
            serve(url, name, work[:2], 2)
            rates["server"], answers = serve(url, name, work, arguments.concurrency)
            same = sum(left == right for left, right in zip(alone, answers))
            print(f"{same} of {len(work)} answers of the server are those of the loop")
            print(f"time to first token, nothing else running: {first_token(url, name, work) * 1e3:.1f} ms")
    base = list(rates.values())
    for name, rate in rates.items():
        ratios = ", ".join(f"{rate / other:.2f} times {key}" for key, other in zip(rates, base) if key != name)
        print(f"{name:24} {rate:9.1f} tokens/s  ({ratios})")


if __name__ == "__main__":
    main()
