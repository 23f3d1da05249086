"""Texts of other lengths than the benchmark's own: queries of about eight tokens, where the pipeline's own cost shows most, and passages
that fill the model's window. Raw ONNX Runtime gets the same texts."""

from folders import write_texts
from raw import read_texts
from servers import load

QUERY_WORDS = 5  # about eight tokens, with those at both ends
PASSAGE_WORDS = 400  # more than 512 tokens
IN_FLIGHT = {"queries": 256, "passages": 64}
DEPLOYMENTS = ("all in one", "services")


def start(bench):
    """Writes the texts, and starts raw ONNX Runtime on them."""
    texts = read_texts(bench.options.texts)
    words = " ".join(texts).split()
    made = {
        "queries": [" ".join(text.split()[:QUERY_WORDS]) for text in texts],
        "passages": [" ".join(words[begin : begin + PASSAGE_WORDS]) for begin in range(0, len(words), PASSAGE_WORDS)],
    }
    for kind, chosen in made.items():
        write_texts(file(bench, kind), chosen)
        bench.start_raw(f"raw {kind}", ["--texts", file(bench, kind)])


def file(bench, kind):
    return bench.work / f"{kind}.txt"


def turns(bench, model):
    """Texts per second of each kind: raw offline, and served."""
    for kind, in_flight in IN_FLIGHT.items():
        bench.offline(f"raw {kind}")
        for name in DEPLOYMENTS:
            measured = load(bench.binaries / "trireme", bench.deployments[name], model, bench.options.seconds, in_flight, file(bench, kind))
            bench.keep(f"{name}, {kind} / {in_flight}", measured)
