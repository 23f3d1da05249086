"""The part of the text cache: texts that it has beside computing them, texts that it has not beside a gateway without it, and
`trireme bulk` over a corpus of which a little has changed. In one process and as services."""

import json

import clients
from folders import write_texts
from raw import read_texts
from servers import BenchError, load

DEPLOYMENTS = ("all in one", "services")
IN_FLIGHT = 64
FORM = "openai-base64"  # requests of the v2 protocol are not looked up
BYTES = 256 << 20  # more than all texts of a run take
TEXTS_PER_SECOND = 8000  # at most, of texts that no gateway has seen
CORPUS = 1200  # texts of the corpus, of which every CHANGED-th one changes
CHANGED = 33


def cached(name):
    """The same deployment with a text cache."""
    return f"{name}, text cache"


def start(bench, model, stages):
    repository = bench.repository("plain")
    with_cache = ("--allow-metrics=false", "--text-cache", BYTES)
    texts = read_texts(bench.options.texts)
    for name, extra in (("all in one", {}), (cached("all in one"), {"extra": with_cache})):
        bench.all_in_one(name, ["--model-repository", repository], model, **extra)
    for name, extra in (("services", {}), (cached("services"), {"extra": with_cache})):
        bench.services(name, repository, model, stages, **extra)
    for name in DEPLOYMENTS:
        embed_all(bench.deployments[cached(name)], model, texts)


def embed_all(deployment, model, texts):
    """Fills the cache with these texts."""
    for begin in range(0, len(texts), IN_FLIGHT):
        body = json.dumps({"model": model, "input": texts[begin : begin + IN_FLIGHT]})
        clients.ask(deployment, "POST", clients.ENDPOINT, body.encode(), {"Content-Type": "application/json"})


def turn(bench, model):
    for name in DEPLOYMENTS:
        seen(bench, model, name)
        unseen(bench, model, name)
        corpus(bench, model, name)


def seen(bench, model, name):
    """Texts that the cache has, and the same texts computed."""
    bench.measure_in_order(
        bench.load(cached(name), model, IN_FLIGHT, key=f"{name} / all from the text cache", form=FORM),
        bench.load(name, model, IN_FLIGHT, key=f"{name} / all computed", form=FORM),
    )


def unseen(bench, model, name):
    """Texts that no gateway has seen. A load without warm-up, which would send the first texts twice."""
    path, seconds = bench.work / "unseen.txt", bench.options.seconds
    count = int(TEXTS_PER_SECOND * seconds)
    write_texts(path, new_texts(bench, f"{name} {bench.turn}", count))
    def side(where, key):
        found = load(bench.binaries / "trireme", bench.deployments[where], model, seconds, IN_FLIGHT, path, form=FORM, warm_up=0)
        if found["requests_per_second"] * seconds > count / 2:
            raise BenchError(f"{where} answers more than {TEXTS_PER_SECOND // 2} texts a second: raise TEXTS_PER_SECOND")
        bench.keep(f"{name} / {key}", found)
    bench.measure_in_order(
        lambda: side(cached(name), "none from the text cache"), lambda: side(name, "the same without a text cache"),
    )


def corpus(bench, model, name):
    """`trireme bulk` over a new corpus, and over the same with a few changed texts."""
    first = new_texts(bench, f"corpus {name} {bench.turn}", CORPUS)
    second = [f"changed {text}" if number % CHANGED == 0 else text for number, text in enumerate(first)]
    for key, texts in (("first", first), ("with 3 % changed", second)):
        path = bench.work / "corpus.jsonl"
        path.write_text("".join(json.dumps(text) + "\n" for text in texts))
        seconds = clients.embed_file(bench.binaries / "trireme", bench.deployments[cached(name)], model, path, len(texts))
        bench.keep(f"{name} / trireme bulk over a corpus, {key}", {"seconds": seconds})


def new_texts(bench, mark, count):
    """So many texts, each of which is there once, in no other turn and for no other deployment."""
    texts = read_texts(bench.options.texts)
    return [f"{mark} {number} {texts[number % len(texts)]}" for number in range(count)]
