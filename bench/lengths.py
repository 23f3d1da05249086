"""Other inputs than the benchmark's own texts: queries of about eight tokens, where the pipeline's own cost shows most; passages that fill
the model's window; pairs of texts for a cross-encoder; and passages for a model of wide hidden states, which must not cross the broker.
Raw ONNX Runtime gets the same inputs."""

import json
import subprocess
from pathlib import Path

from folders import write_texts
from raw import read_texts
from servers import BenchError

QUERY_WORDS = 5  # about eight tokens, with those at both ends
PASSAGE_WORDS = 400  # more than 512 tokens
IN_FLIGHT = {"queries": 256, "passages": 32, "pairs": 64, "wide states": 32}
LONGER = {"passages": 2}  # times the usual measurement: those in flight take a second, and would be much of a short one
DEPLOYMENTS = ("all in one", "services")
# The deployments of kinds that have a model of their own.
OWN = {"pairs": DEPLOYMENTS, "wide states": ("services",)}


def start(bench, stages):
    """Writes the inputs, starts raw ONNX Runtime on them, and serves the models that only they have."""
    import graphs
    texts = read_texts(bench.options.texts)
    queries, passages = inputs(bench.options.sets, texts)
    for kind, chosen in {"queries": queries, "passages": passages, "wide states": passages}.items():
        write_texts(file(bench, kind), chosen)
    # The query of each text with the text that follows it.
    pairs = zip(queries, texts[1:] + texts[:1])
    file(bench, "pairs").write_text("\n".join(json.dumps({"text": query, "text_pair": text}) for query, text in pairs))
    for kind in ("queries", "passages"):
        bench.start_raw(f"raw {kind}", ["--texts", file(bench, kind)])
    for kind, make in {"pairs": graphs.cross_encoder, "wide states": graphs.wide_states}.items():
        folder = make(Path(bench.options.model), bench.work / name_of(kind))
        bench.start_raw(f"raw {kind}", ["--texts", file(bench, kind), "--model", folder, "--max-length", graphs.MAX_LENGTH])
        repository = derive(bench, folder)
        if "all in one" in OWN[kind]:
            bench.all_in_one(f"all in one, {kind}", ["--model-repository", repository], name_of(kind))
        bench.services(f"services, {kind}", repository, name_of(kind), stages)


def inputs(sets, texts):
    """Queries and passages: of the text sets, or else cut out of the texts."""
    if sets:
        return read_texts(sets["queries"]), read_texts(sets["passages"])
    words = " ".join(texts).split()
    queries = [" ".join(text.split()[:QUERY_WORDS]) for text in texts]
    return queries, [" ".join(words[begin : begin + PASSAGE_WORDS]) for begin in range(0, len(words), PASSAGE_WORDS)]


def derive(bench, folder):
    """The repository that `trireme init` makes of a model folder."""
    repository = folder.with_name(f"{folder.name}-repository")
    done = subprocess.run([bench.binaries / "trireme", "init", folder, repository], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"trireme init failed on {folder}: {done.stderr.strip()}")
    return repository


def name_of(kind):
    """The name of a kind's own model, and of its files."""
    return kind.replace(" ", "-")


def file(bench, kind):
    return bench.work / f"{name_of(kind)}.txt"


def turn(bench, model):
    """Texts per second of each kind: raw offline, and served."""
    for kind, in_flight in IN_FLIGHT.items():
        seconds, sides = bench.options.seconds * LONGER.get(kind, 1), [lambda: bench.again(f"raw {kind}")]
        for name in OWN.get(kind, DEPLOYMENTS):
            where, asked = (f"{name}, {kind}", name_of(kind)) if kind in OWN else (name, model)
            key = f"{name}, {kind} / {in_flight}"
            sides.append(bench.load(where, asked, in_flight, key=key, seconds=seconds, texts=file(bench, kind)))
        bench.measure_in_order(*sides)
