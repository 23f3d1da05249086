"""The CPU time that a text takes between services: of broker, gateway and tokenizer, each with one thread and with as many as it likes."""

ONE = {"nats-server": {"GOMAXPROCS": "1"}, "gateway": {"TOKIO_WORKER_THREADS": "1"}, "tokenizer": {"TOKIO_WORKER_THREADS": "1"}}
USUAL = "processes, as they are"
# The processes that get one thread: all of them, and each alone.
SETTINGS = {
    USUAL: {},
    "processes, one thread each": ONE,
    **{f"processes, one thread of {stage}": {stage: variables} for stage, variables in ONE.items()},
}
CONCURRENCY = [1, 16, 64]


def start(bench, repository, model, stages):
    for name, environments in SETTINGS.items():
        bench.services(name, repository, model, stages, environments=environments)


def measure(bench, model):
    for in_flight in CONCURRENCY:
        bench.measure_in_order(*(bench.load(name, model, in_flight) for name in SETTINGS))


def table(report):
    """A line for each setting and number of requests in flight; none where the part was not measured."""
    if f"{USUAL} / {CONCURRENCY[0]}" not in report.results:
        return []
    stages = list(ONE)
    lines = ["", "| CPU us of a text between services | in flight | " + " | ".join(stages) + " | together | to those as they are | texts/s | p99 ms |"]
    lines.append("|---|---|" + "---|" * (len(stages) + 4))
    between = lambda row: sum(row["cpu_us"][stage] for stage in stages)
    for in_flight in CONCURRENCY:
        usual = report.results[f"{USUAL} / {in_flight}"]
        for name in SETTINGS:
            key = f"{name} / {in_flight}"
            rows = report.results[key]
            cells = [report.show([row["cpu_us"][stage] for row in rows], 0) for stage in stages]
            cells.append(report.show([between(row) for row in rows], 0))
            cells.append(report.show([between(row) / between(beside) for row, beside in zip(rows, usual, strict=True)], 2))
            cells += [report.show(report.values(key, "requests_per_second")), report.show(report.values(key, "p99_ms"), 2)]
            lines.append(f"| {name} | {in_flight} | {' | '.join(cells)} |")
    return lines
