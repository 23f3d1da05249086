"""Makes the table, its JSON and its plot from the measurements of all turns.

A ratio has two sides that were measured in one turn, one after the other; a bar is compared with the median of the turns' ratios. A bar is
missed only where not one turn reached it: what lies between is within the spread.
"""

import json
import statistics

import cached
import processes
import windows
from lengths import IN_FLIGHT
from plan import BUDGETS, LAYOUTS, OPENAI_TEXTS, POOL, POOL_BUDGETS, WORKERS, best_key, pool_key

LENGTH_BARS = {
    "queries": {"all in one": 0.9, "services": 0.9}, "passages": {"all in one": 0.97, "services": 0.92},
    "pairs": {"all in one": 0.9, "services": 0.9}, "wide states": {"services": 0.9},
}
LARGE_CELLS = [("seconds", 1, 1), ("peak", 2**-20, 0), ("settled", 2**-20, 0)]
BROKER_BAR = 64  # kB: the states of a text are 2 MB
RAW = ["raw", "raw openvino", *(f"raw {kind}" for kind in IN_FLIGHT)]
REACHED = {">=": lambda value, bar: value >= bar, "<=": lambda value, bar: value <= bar}


def spread(values):
    """Median, lowest and highest value."""
    return statistics.median(values), min(values), max(values)


def verdict(values, how, bar):
    """Whether the median reaches the bar, or at least one turn, or none."""
    middle, low, high = spread(values)
    reached = lambda value: REACHED[how](value, bar)
    return "holds" if reached(middle) else "within the spread" if reached(high if how == ">=" else low) else "missed"


def show(values, digits=1):
    middle, low, high = spread(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


class Report:
    def __init__(self, results, facts):
        self.results, self.facts = results, facts

    def values(self, key, field, factor=1):
        return [factor * one[field] for one in self.results[key]]

    show = staticmethod(show)

    def median(self, key, field):
        return statistics.median(self.values(key, field))

    def ratio(self, key, other):
        """The ratio of two rows in each turn. Tokens per second are compared where both sides tell them, as then no side has the longer texts;
        else texts per second, else requests."""
        rows = self.results[key] + self.results[other]
        of = next(field for field in ("tokens_per_second", "texts_per_second", "requests_per_second") if all(one.get(field) for one in rows))
        return [one / beside for one, beside in zip(self.values(key, of), self.values(other, of), strict=True)]

    def cpu(self, key, stage=None):
        """CPU time of a request, of all processes or of one."""
        return [one["cpu_us"][stage] if stage else sum(one["cpu_us"].values()) for one in self.results[key]]

    def bars(self):
        """(measured, its value in each turn, how, bar), for the parts that were measured."""
        bars, has = [], self.results.__contains__
        large = lambda name: next((key for key in self.results if key.startswith(f"{name} / 1 request of ")), None)
        if has(best_key("raw")):
            best = best_key("raw")
            bars += [
                ("texts/s at 64, all in one / raw best", self.ratio("all in one / 64", best), ">=", 0.93),
                (f"texts/s at 64, all in one / raw best over pools of {POOL}", self.ratio("all in one / 64", best_key("raw", POOL)), ">=", 1.0),
                ("texts/s at 64, services / raw best", self.ratio("services / 64", best), ">=", 0.92),
                ("texts/s at 16, all in one / raw best", self.ratio("all in one / 16", best), ">=", 0.90),
                (f"texts/s of {large('all in one').split(' / ')[1]}, all in one / raw best", self.ratio(large("all in one"), best), ">=", 0.98),
            ]
        if has("openvino / 64"):
            accelerated = best_key("raw openvino")
            bars += [
                ("texts/s at 64, openvino / its raw best", self.ratio("openvino / 64", accelerated), ">=", 0.90),
                (f"texts/s of {large('openvino').split(' / ')[1]}, openvino / its raw best", self.ratio(large("openvino"), accelerated), ">=", 0.95),
                ("lowest cosine, openvino to plain", self.values("openvino / lowest cosine", "cosine"), ">=", 0.9999),
            ]
        for kind, in_flight in IN_FLIGHT.items():
            if has(best_key(f"raw {kind}")):
                for name, bar in LENGTH_BARS[kind].items():
                    measured = self.ratio(f"{name}, {kind} / {in_flight}", best_key(f"raw {kind}"))
                    bars.append((f"texts/s of {kind} at {in_flight}, {name} / raw best", measured, ">=", bar))
        if has(wide := f"services, wide states / {IN_FLIGHT['wide states']}"):
            bars.append(("kB that the broker gets and sends for a text of wide states", self.values(wide, "broker_bytes", 1e-3), "<=", BROKER_BAR))
        starts = [key for key in self.results if key.endswith("/ start to first answer")]
        bars += [(f"seconds, {key}", self.values(key, "seconds"), "<=", 1.0) for key in starts]
        for key in (key for key in self.results if key.startswith("recipe beside all in one / ")):
            where = key.split(" / ")[1]
            bars.append((f"texts/s of serve FOLDER / tuned repository, {where}", self.ratio(key, f"all in one beside recipe / {where}"), ">=", 0.97))
        if has("int8 beside recipe / 64"):
            bars += [
                ("texts/s at 64, int8 variant / its original", self.ratio("int8 beside recipe / 64", "recipe beside int8 / 64"), ">=", 1.8),
                ("lowest cosine of the int8 variant to its original, other texts", self.values("int8 / fidelity", "lowest"), ">=", 0.99),
                ("lowest cosine of the int8 variant, a text alone and among others", self.values("int8 / fidelity", "batched"), ">=", 0.9999),
            ]
        for name in windows.DEPLOYMENTS:
            if has(windows.row(name, windows.LONG)):
                bars.append((f"texts/s of windows of long texts, {name} / the same rows sent plainly", windows.ratios(self, name), ">=", 0.95))
        for key in (key for key in self.results if key.startswith("large / ")):
            kind = key.removeprefix("large / ")
            ratio = lambda field: [one["ratios"][field] for one in self.results[key]]
            bars += [
                (f"1.1 GB, {kind}: seconds until it serves / raw session", ratio("seconds"), "<=", 1.5),
                (f"1.1 GB, {kind}: most memory until it serves / raw", ratio("peak"), "<=", 1.2),
                (f"1.1 GB, {kind}: most memory later / raw", ratio("settled"), "<=", 1.2),
                (f"1.1 GB, {kind}: MB that it writes", self.values(key, "copied", 1e-6), "<=", 10),
            ]
        for in_flight, bar in ((16, 1.6), (64, 1.3)):
            if has(key := f"all in one / {in_flight}"):
                tails = [one["p99_ms"] / one["p50_ms"] for one in self.results[key]]
                bars.append((f"p99 / p50 at {in_flight}, all in one", tails, "<=", bar))
        for name, bar in (("all in one", 0.15), ("services", 0.5)):
            if has(f"{name} / lone, less raw"):
                bars.append((f"p50 at 1, {name} - raw, ms", self.values(f"{name} / lone, less raw", "p50_ms"), "<=", bar))
        for name in ("all in one", "services"):
            if has(f"{name} / openai, one text"):
                one, other = f"{name} / openai, one text", f"{name} / json, one text"
                cpu = lambda stage=None: [a / max(b, 1) for a, b in zip(self.cpu(one, stage), self.cpu(other, stage), strict=True)]
                bars.append((f"CPU of one text, {name}, /v1/embeddings / v2 JSON", cpu(), "<=", 1.05))
                if name == "services":
                    bars.append(("CPU of one text, gateway alone, /v1/embeddings / v2 JSON", cpu("gateway"), "<=", 1.05))
                many = [f"{name} / {form}, 1 request of {OPENAI_TEXTS}" for form in ("openai-base64", "binary")]
                # Sides that are the same differ by 1 % from turn to turn.
                bars.append((f"texts/s of a large request, {name}, /v1/embeddings in base64 / v2 binary", self.ratio(*many), ">=", 0.99))
        if has("identity / 64"):
            bars += [
                ("identity ensemble at 64, all in one / a bare chain of three hops on JetStream", self.ratio("identity / 64", "bare chain / 64"), ">=", 1.5),
                ("identity ensemble at 64, services / the same bare chain", self.ratio("identity services / 64", "bare chain / 64"), ">=", 0.7),
                ("the same with a queue policy / without", self.ratio("identity policy services / 64", "identity services / 64"), ">=", 0.7),
            ]
        for name in cached.DEPLOYMENTS:
            if has(first := f"{name} / trireme bulk over a corpus, first"):
                again = self.values(f"{name} / trireme bulk over a corpus, with 3 % changed", "seconds")
                shares = [one / whole for one, whole in zip(again, self.values(first, "seconds"), strict=True)]
                of = lambda key, other: self.ratio(f"{name} / {key}", f"{name} / {other}")
                bars += [
                    (f"texts/s at 64, {name}, all from the text cache / computed", of("all from the text cache", "all computed"), ">=", 10),
                    (f"texts/s at 64, {name}, none from the text cache / without one", of("none from the text cache", "the same without a text cache"), ">=", 0.98),
                    (f"seconds of trireme bulk, {name}, a corpus with 3 % changed / its first run", shares, "<=", 0.08),
                ]
        if has("python / 64"):
            if has("python triton / 64"):
                bars += [
                    ("python ensemble at 64, all in one / Triton", self.ratio("python / 64", "python triton / 64"), ">=", 2.0),
                    ("python ensemble at 64, services / Triton", self.ratio("python services / 64", "python triton / 64"), ">=", 1.0),
                ]
            bars += [
                ("p50 at 1, a python step - an identity step, ms", self.values("python / lone step, less identity", "p50_ms"), "<=", 0.15),
                ("16 MiB through a python step, GB/s", self.values("python / 16 MiB through a step", "gb_per_second"), ">=", 2.0),
            ]
        for name in ("all in one", "services"):
            if has(f"{name} / with owners"):
                ratio = self.ratio(f"{name} / with owners", f"{name} / without owners")
                bars.append((f"texts/s of two clients, {name}, with keys, limits and shares / without", ratio, ">=", 0.98))
        if has(most := f"simulated / {WORKERS[-1]} workers"):
            ideal = [one["requests_per_second"] / one["ideal"] for one in self.results[most]]
            bars += [(f"simulated model, {WORKERS[-1]} workers / ideal", ideal, ">=", 0.95)]
        return bars

    def markdown(self):
        lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in self.facts.items()), ""]
        lines += [
            "Medians of the turns, with the lowest and the highest. All in one run. The sides of a ratio are measured one after the other in each",
            "turn, and the ratio is that of the turn. `missed`: not one turn reached the bar; `within the spread`: some did, the median did not.", "",
            "| against its bar | median | lowest and highest | bar | |", "|---|---|---|---|---|",
        ]
        for text, values, how, bar in self.bars():
            middle, low, high = spread(values)
            lines.append(f"| {text} | {middle:,.4g} | {low:,.4g} to {high:,.4g} | {how} {bar:,} | {verdict(values, how, bar)} |")
        lines += ["", "| | texts/s | p50 ms | p99 ms | client CPU us/request |", "|---|---|---|---|---|"]
        keys = [f"{raw} / {layout}, {budget} tokens" for raw in RAW for layout in LAYOUTS for budget in BUDGETS]
        keys += [pool_key("raw", budget) for budget in POOL_BUDGETS]
        for key in filter(self.results.__contains__, keys):
            lines.append(f"| {key} | {show(self.values(key, 'texts_per_second'))} | | | |")
        for key in (key for key in self.results if key.endswith(" / best")):
            settings, padded = self.results[key][0]["settings"], self.median(key, "padded_by_real")
            lines.append(f"| **{key}**: {settings}, {padded:.2f} tokens with padding to a real one | {show(self.values(key, 'texts_per_second'))} | | | |")
        if "raw / lone" in self.results:
            lines.append(f"| raw / lone | | {show(self.values('raw / lone', 'p50_ms'), 3)} | | |")
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
        lines += processes.table(self)
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
        loads = [f"{name} / {form}, one text" for name in ("all in one", "services") for form in ("json", "openai")]
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
            best_cpu = self.median(best_key("raw"), "cpu_us")
            total = statistics.median(self.cpu(key))
            lines.append(f"| {key} | all, less raw ONNX Runtime's {best_cpu:,.0f} per text | {total - best_cpu:,.1f} |")
        return "\n".join(lines) + "\n"

    def write(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        named = ("value", "low", "high")
        bars = [
            {"what": text, **dict(zip(named, spread(values))), "bar": f"{how} {bar:,}", "verdict": verdict(values, how, bar)}
            for text, values, how, bar in self.bars()
        ]
        everything = {"facts": self.facts, "bars": bars, "turns": self.results}
        (directory / "bench.json").write_text(json.dumps(everything, indent=1) + "\n")
        (directory / "bench.md").write_text(self.markdown())
        self.plot(directory / "bench.svg")

    def plot(self, path):
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
        rows = [key for key in (best_key("raw"), best_key("raw", POOL), "all in one / 64", "services / 64", "all in one / 16", best_key("raw openvino"), "openvino / 64")
                if key in self.results]
        for place, key in enumerate(rows):
            field = "texts_per_second" if "texts_per_second" in self.results[key][0] and key.endswith("best") else "requests_per_second"
            middle, low, high = spread(self.values(key, field))
            left.barh(place, middle, xerr=[[middle - low], [high - middle]], capsize=2, color="grey" if key.endswith("best") else "tab:blue")
        left.set_yticks(range(len(rows)), rows, fontsize=8)
        left.invert_yaxis()
        left.set(xlabel="texts/s")
        counts = [count for count in WORKERS if f"simulated / {count} workers" in self.results]
        rates, ideal = ([self.median(f"simulated / {count} workers", field) for count in counts] for field in ("requests_per_second", "ideal"))
        right.plot(counts, ideal, "--", color="black", linewidth=1, label="ideal")
        right.plot(counts, rates, "o-", label="measured")
        right.set(xlabel="workers of a simulated model", ylabel="requests/s")
        right.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(path)
