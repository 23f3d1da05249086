"""Makes the table, its JSON and its plot from the measurements of all rounds."""

import json
import statistics

from lengths import IN_FLIGHT
from plan import BUDGETS, CONCURRENCY, POOL, POOL_BUDGETS, WORKERS, pool_key

LENGTH_BARS = {
    "queries": {"all in one": 0.9, "services": 0.9}, "passages": {"all in one": 0.97, "services": 0.92},
    "pairs": {"all in one": 0.9, "services": 0.9}, "wide states": {"services": 0.9},
}
LARGE_CELLS = [("seconds", 1, 1), ("peak", 2**-20, 0), ("settled", 2**-20, 0)]
BROKER_BAR = 64  # kB: the states of a text are 2 MB


def spread(values):
    """Median, lowest and highest value."""
    return statistics.median(values), min(values), max(values)


def show(values, digits=1):
    middle, low, high = spread(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


class Report:
    def __init__(self, results, facts):
        self.results, self.facts = results, facts

    def values(self, key, field, factor=1):
        return [factor * one[field] for one in self.results[key]]

    def median(self, key, field):
        return statistics.median(self.values(key, field))

    def best(self, raw):
        """The settings with which raw ONNX Runtime is fastest."""
        keys = [f"{raw} / {layout}, {budget} tokens" for layout in ("narrow", "wide") for budget in BUDGETS]
        return max(keys, key=lambda key: self.median(key, "texts_per_second"))

    def best_of_pools(self, raw):
        """The batches with which raw ONNX Runtime is fastest over pools of texts."""
        return max((pool_key(raw, budget) for budget in POOL_BUDGETS), key=lambda key: self.median(key, "texts_per_second"))

    def bars(self):
        """(measured, value, bar, whether it holds), each from the medians of this run, for the parts that were measured."""
        rate = lambda name: self.median(f"{name} / 64", "requests_per_second")
        lone = lambda name: self.median(f"{name} / lone, less raw", "p50_ms")
        bars = []
        if "all in one / 64" in self.results:
            best = self.median(self.best("raw"), "texts_per_second")
            pooled = self.median(self.best_of_pools("raw"), "texts_per_second")
            bars += [
                ("texts/s at 64, all in one / raw best", rate("all in one") / best, ">=", 0.93),
                (f"texts/s at 64, all in one / raw best over pools of {POOL}", rate("all in one") / pooled, ">=", 1.0),
                ("texts/s at 64, services / raw best", rate("services") / best, ">=", 0.92),
                ("texts/s at 16, all in one / raw best", self.median("all in one / 16", "requests_per_second") / best, ">=", 0.90),
            ]
        for key in (key for key in self.results if key.startswith("all in one / 1 request of ")):
            texts = int(key.rsplit(" of ", 1)[1])
            value = texts * self.median(key, "requests_per_second") / best
            bars.append((f"texts/s of 1 request of {texts}, all in one / raw best", value, ">=", 0.98))
        for kind, in_flight in IN_FLIGHT.items():
            if f"raw {kind} / narrow, {BUDGETS[0]} tokens" not in self.results:
                continue
            offline = self.median(self.best(f"raw {kind}"), "texts_per_second")
            for name, bar in LENGTH_BARS[kind].items():
                value = self.median(f"{name}, {kind} / {in_flight}", "requests_per_second") / offline
                bars.append((f"texts/s of {kind} at {in_flight}, {name} / raw best", value, ">=", bar))
        if (wide := f"services, wide states / {IN_FLIGHT['wide states']}") in self.results:
            crossed = statistics.median(self.values(wide, "broker_bytes", 1e-3))
            bars.append(("kB that the broker gets and sends for a text of wide states", crossed, "<=", BROKER_BAR))
        starts = [key for key in self.results if key.endswith("/ start to first answer")]
        bars += [(f"seconds, {key}", self.median(key, "seconds"), "<=", 1.0) for key in starts]
        for key in (key for key in self.results if key.startswith("recipe / tuned / ")):
            where = key.removeprefix("recipe / tuned / ")
            bars.append((f"texts/s of serve FOLDER / tuned repository, {where}", self.median(key, "ratio"), ">=", 0.97))
        if "int8 / original / 64" in self.results:
            compared = self.results["int8 / fidelity"][0]
            bars += [
                ("texts/s at 64, int8 variant / its original", self.median("int8 / original / 64", "ratio"), ">=", 1.8),
                ("lowest cosine of the int8 variant, other texts", compared["lowest"], ">=", 0.99),
            ]
        for key in (key for key in self.results if key.startswith("large / ")):
            kind = key.removeprefix("large / ")
            ratio = lambda field: statistics.median(one["ratios"][field] for one in self.results[key])
            bars += [
                (f"1.1 GB, {kind}: seconds until it serves / raw session", ratio("seconds"), "<=", 1.5),
                (f"1.1 GB, {kind}: most memory until it serves / raw", ratio("peak"), "<=", 1.2),
                (f"1.1 GB, {kind}: most memory later / raw", ratio("settled"), "<=", 1.2),
                (f"1.1 GB, {kind}: MB that it writes", max(self.values(key, "copied", 1e-6)), "<=", 10),
            ]
        if "all in one / lone, less raw" in self.results:
            bars += [
                ("p50 at 1, all in one - raw, ms", lone("all in one"), "<=", 0.15),
                ("p50 at 1, services - raw, ms", lone("services"), "<=", 0.5),
            ]
        for name in ("all in one", "services"):
            if f"{name} / openai by v2" in self.results:
                beside = lambda field: self.median(f"{name} / openai by v2", field)
                bars += [
                    (f"CPU of one text, {name}, /v1/embeddings / v2 JSON", beside("cpu"), "<=", 1.05),
                    # Sides that are the same differ by 1 % from turn to turn.
                    (f"texts/s of a large request, {name}, /v1/embeddings in base64 / v2 binary", beside("rate"), ">=", 0.99),
                ]
        if "services / openai by v2" in self.results:
            bars += [("CPU of one text, gateway alone, /v1/embeddings / v2 JSON", self.median("services / openai by v2", "gateway_cpu"), "<=", 1.05)]
        if "identity / 64" in self.results:
            bars += [
                ("identity ensemble at 64, all in one, req/s", rate("identity"), ">=", 30000),
                ("identity ensemble at 64, services / a bare chain of three hops on JetStream", rate("identity services") / rate("bare chain"), ">=", 0.7),
                ("the same with a queue policy / without", rate("identity policy services beside the other") / rate("identity services beside the other"), ">=", 0.7),
            ]
        if "python / 64" in self.results:
            if "python triton / 64" in self.results:
                bars += [
                    ("python ensemble at 64, all in one / Triton", rate("python") / rate("python triton"), ">=", 2.0),
                    ("python ensemble at 64, services / Triton", rate("python services") / rate("python triton"), ">=", 1.0),
                ]
            bars += [
                ("p50 at 1, a python step - an identity step, ms", self.median("python / lone step, less identity", "p50_ms"), "<=", 0.15),
                ("16 MiB through a python step, GB/s", self.median("python / 16 MiB through a step", "gb_per_second"), ">=", 2.0),
            ]
        if most := self.results.get(f"simulated / {WORKERS[-1]} workers"):
            ideal = statistics.median(one["requests_per_second"] / one["ideal"] for one in most)
            bars += [(f"simulated model, {WORKERS[-1]} workers / ideal", ideal, ">=", 0.95)]
        if "openvino / 64" in self.results:
            accelerated = self.median(self.best("raw openvino"), "texts_per_second")
            cosine = self.results["openvino / lowest cosine"][0]["cosine"]
            bars += [
                ("texts/s at 64, openvino / its raw best", rate("openvino") / accelerated, ">=", 0.80),
                ("texts/s at 64, openvino / raw best of the CPU provider", rate("openvino") / best, ">=", 3.0),
                ("lowest cosine, openvino to plain", cosine, ">=", 0.9999),
            ]
        holds = {">=": lambda value, bar: value >= bar, "<=": lambda value, bar: value <= bar}
        return [(text, value, f"{how} {bar:,}", holds[how](value, bar)) for text, value, how, bar in bars]

    def markdown(self):
        lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in self.facts.items()), ""]
        lines += ["Medians of the rounds, with the lowest and the highest. All in one run; the sides of each part take turns.", ""]
        lines += ["| against its bar | measured | bar | |", "|---|---|---|---|"]
        for text, value, bar, holds in self.bars():
            lines.append(f"| {text} | {value:,.4g} | {bar} | {'holds' if holds else 'missed'} |")
        lines += ["", "| | texts/s | p50 ms | p99 ms | client CPU us/request |", "|---|---|---|---|---|"]
        for raw in ("raw", "raw openvino", *(f"raw {kind}" for kind in IN_FLIGHT)):
            if f"{raw} / narrow, {BUDGETS[0]} tokens" not in self.results:
                continue
            for layout in ("narrow", "wide"):
                for budget in BUDGETS:
                    key = f"{raw} / {layout}, {budget} tokens"
                    mark = " **best**" if key == self.best(raw) else ""
                    lines.append(f"| {key}{mark} | {show(self.values(key, 'texts_per_second'))} | | | |")
            for key in (key for key in (pool_key(raw, budget) for budget in POOL_BUDGETS) if key in self.results):
                mark = " **best**" if key == self.best_of_pools(raw) else ""
                padded = self.median(key, "padded_by_real")
                lines.append(f"| {key}{mark}, {padded:.2f} tokens with padding to a real one | {show(self.values(key, 'texts_per_second'))} | | | |")
            if f"{raw} / lone" in self.results:
                lines.append(f"| {raw} / lone | | {show(self.values(f'{raw} / lone', 'p50_ms'), 3)} | | |")
        for name in ("all in one", "services"):
            key = f"{name} / lone, less raw"
            if key in self.results:
                lines.append(f"| {key} | | {show(self.values(key, 'p50_ms'), 3)} | | |")
        for key, rounds in self.results.items():
            if "seconds" in rounds[0]:
                lines.append(f"| {key} | | {show(self.values(key, 'seconds', 1e3), 0)} | | |")
            if "requests_per_second" not in rounds[0]:
                continue
            texts = int(key.rsplit(" of ", 1)[1]) if "1 request of " in key else 1
            cells = [
                show(self.values(key, "requests_per_second", texts)), show(self.values(key, "p50_ms"), 3),
                show(self.values(key, "p99_ms"), 3), show(self.values(key, "client_cpu_us")) if "client_cpu_us" in rounds[0] else "",
            ]
            lines.append(f"| {key} | {' | '.join(cells)} |")
        memory = [key for key in self.results if key.endswith("/ memory")]
        if memory:
            lines += ["", "| | RSS MiB under load |", "|---|---|"]
            lines += [f"| {key.removesuffix(' / memory')} | {show(self.values(key, 'rss_mib'), 0)} |" for key in memory]
        large = [key for key in self.results if key.startswith("large / ")]
        if large:
            lines += ["", "| a model of 1.1 GB | side | seconds until it serves | most MiB until then | most MiB later |", "|---|---|---|---|---|"]
            for key, side in ((key, side) for key in large for side in ("raw", "served")):
                cells = [show([one[side][field] * factor for one in self.results[key]], digits) for field, factor, digits in LARGE_CELLS]
                lines.append(f"| {key.removeprefix('large / ')} | {side} | {' | '.join(cells)} |")
        loads = [f"{name} / one text, {form}" for name in ("all in one", "services") for form in ("json", "openai")]
        loads += ["all in one / 64", "services / 64", "identity / 64", "identity services / 64"]
        loads += ["python / 64", "python services / 64"]
        loads = [key for key in loads if key in self.results]
        if not loads:
            return "\n".join(lines) + "\n"
        lines += ["", "CPU time per request, in microseconds, by process (services) and thread (all in one; the thread"]
        lines += ["`trireme` is the async runtime and the threads that ONNX Runtime made):", ""]
        lines += ["| | where | CPU us/request |", "|---|---|---|"]
        for key in loads:
            field = "cpu_us" if "services" in key else "thread_cpu_us"
            for where in self.results[key][0][field]:
                cpu = statistics.median(one[field].get(where, 0) for one in self.results[key])
                if cpu >= 0.5:
                    lines.append(f"| {key} | {where} | {cpu:,.1f} |")
        for key in (key for key in loads if key.endswith("/ 64") and not key.startswith(("identity", "python"))):
            best_cpu = self.median(self.best("raw"), "cpu_us")
            total = statistics.median(sum(one["cpu_us"].values()) for one in self.results[key])
            lines.append(f"| {key} | all, less raw ONNX Runtime's {best_cpu:,.0f} per text | {total - best_cpu:,.1f} |")
        return "\n".join(lines) + "\n"

    def write(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        bars = [{"what": text, "value": value, "bar": bar, "holds": holds} for text, value, bar, holds in self.bars()]
        everything = {"facts": self.facts, "bars": bars, "rounds": self.results}
        (directory / "bench.json").write_text(json.dumps(everything, indent=1) + "\n")
        (directory / "bench.md").write_text(self.markdown())
        self.plot(directory / "bench.svg")

    def plot(self, path):
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
        served = [name for name in ("all in one", "services", "openvino") if f"{name} / 64" in self.results]
        for offset, name in enumerate(served):
            points = [spread(self.values(f"{name} / {c}", "requests_per_second")) for c in CONCURRENCY]
            middles = [point[0] for point in points]
            errors = [[m - low for m, low, _ in points], [high - m for m, _, high in points]]
            places = [index + 0.25 * (offset - 1) for index in range(len(CONCURRENCY))]
            left.bar(places, middles, 0.25, yerr=errors, label=name, capsize=2)
        for raw, style in (("raw", "--"), ("raw openvino", ":")):
            if f"{raw} / lone" in self.results:
                best = self.median(self.best(raw), "texts_per_second")
                left.axhline(best, color="black", linestyle=style, linewidth=1, label=f"{raw}, offline best")
        left.set_xticks(range(len(CONCURRENCY)), [str(c) for c in CONCURRENCY])
        left.set(xlabel="concurrent requests of one text", ylabel="texts/s")
        left.legend(fontsize=8)
        rates = [self.median(f"simulated / {count} workers", "requests_per_second") for count in WORKERS]
        ideal = [self.median(f"simulated / {count} workers", "ideal") for count in WORKERS]
        right.plot(WORKERS, ideal, "--", color="black", linewidth=1, label="ideal")
        right.plot(WORKERS, rates, "o-", label="measured")
        right.set(xlabel="workers of a simulated model", ylabel="requests/s")
        right.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(path)
