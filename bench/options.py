"""What all benchmarks have: the options of their command lines, and the facts at the top of their tables."""

import argparse
import datetime
import os
import platform
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The files that scripts/setup-bench-texts.sh makes: SET-HALF.txt.
TEXT_SETS = ROOT / ".tools/bench-texts"
HALVES = ("report", "choose")


def parser(description, seconds=5):
    """A parser of the options that every benchmark has. `description` is its module's docstring, `seconds` the default of
    `--seconds`."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--model", default=ROOT / ".tools/demo-model", help="folder of model.onnx (fp32, to compare with others) and tokenizer files")
    made.add_argument("--texts", default=ROOT / "bench/texts.txt", help="texts, one a line, or JSON objects with a text")
    made.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    made.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    made.add_argument("--nats-server", default=os.environ.get("TRIREME_NATS_SERVER", ROOT / ".tools/nats-server/nats-server"))
    return made


def parser_of_results(description, seconds):
    """The same for a benchmark that writes its results."""
    made = parser(description, seconds)
    made.add_argument("--results", type=Path, default=ROOT / "bench/results")
    return made


def parser_of_rounds(description, seconds=5):
    """The same for a benchmark that measures in rounds and writes its results."""
    made = parser_of_results(description, seconds)
    made.add_argument("--rounds", type=int, default=3)
    return made


def parse_with_sets(made, half=HALVES[0]):
    """Parses the command line of a benchmark that uses the text sets, of this half unless it is told, or the file of `--texts`."""
    made.set_defaults(texts=None)
    made.add_argument("--half", choices=HALVES, default=half, help="of the text sets: results are reported on one half, defaults are chosen on the other")
    chosen = made.parse_args()
    chosen.sets = {kind: TEXT_SETS / f"{kind}-{chosen.half}.txt" for kind in ("queries", "passages", "mixed")}
    if chosen.texts:
        chosen.sets = {}
        return chosen
    chosen.texts = chosen.sets["mixed"]
    missing = [str(file) for file in chosen.sets.values() if not file.is_file()]
    if missing:
        made.error(f"there is no {missing[0]}: run scripts/setup-bench-texts.sh, or name a file by --texts")
    return chosen


def processor():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory():
    """The machine's memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def facts(chosen, texts, **more):
    """What a table says of its run, and what `more` adds."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} CPUs",
        "memory": f"{memory():.1f} GiB",
        "model": Path(chosen.model).name,
        "texts": f"{len(texts)} of {Path(chosen.texts).name}",
        **({"rounds": f"{chosen.rounds} of {chosen.seconds:g} s"} if "rounds" in chosen else {}),
        **more,
    }
