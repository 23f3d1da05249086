"""Writes docs/compatibility.md from the scenarios and the data about them."""

import json

from scenarios import DIVERGENCES, ROOT

SUITES = ROOT.parent / "triton-suites" / "results.json"
PATH = ROOT.parent.parent / "docs" / "compatibility.md"
LONGEST_SHOWN = 160

INTRODUCTION = """\
<!-- Written by tests/compat/run.py --docs. Change tests/compat/docs.py or the scenarios, not this file. -->

# Compatibility with Triton

A client that was written against Triton should not notice that it talks to Trireme. `tests/compat` holds that to account:
{total} scenarios, each one HTTP request or gRPC call and the answer to it. {recorded} of the answers were recorded from a real Triton
({version}, models in its python backend); the others say why they could not be. Trireme is asked the same questions in both of its modes,
all in one and as services over NATS, and has to give the same answers. Compared are the status, the body to the byte (or the JSON value,
where its layout means nothing), tensor bytes, and the headers that clients act on.

| theme | what | scenarios | on purpose different | not there yet |
|---|---|---|---|---|
{themes}

## Where Trireme differs on purpose

{divergences}

Not seen in single answers: with `preserve_ordering` they come in the order of their requests, as Triton's documentation
promises; its newer releases keep the order in which answers are made. It is kept for each gateway by itself.

## Where the recording is older than the rule

The recorded Triton is not the newest. Where its sources have changed since, the newer behaviour is expected:

| scenario | why the recorded answer is not expected |
|---|---|
{newer}

## Not there yet

{missing}

## Triton's own suites

`make triton-suites` fetches the repository of Triton's server (here {suites_version}) and makes the models that its suites need with its
own generators. It runs the suites' Python files as they are against `trireme serve` on CPUs. Some suites have shell scripts that look for
words in the server's log, or C++ programs: these do not run. A case that runs under several settings counts once for each; one that the
suite itself skips does not count. Models of Triton's C++ backend `identity` are those of the backend with this name here, and the probe
that looks for leaks in Triton's shared memory looks at nothing. [tests/triton-suites](../tests/triton-suites) says which models and flags
each suite gets.

| suite below `qa/` | passed | why the others do not |
|---|---|---|
{suites}

Not tried: {untried}.

## perf_analyzer

`make perf-analyzer` fetches NVIDIA's perf_analyzer (2.60) and lets it measure both modes. The models are an ensemble of tokenizer, encoder
and pooling that takes texts, a chain of three models, and a batching model. The loads come over HTTP, gRPC, gRPC asynchronous and gRPC
streams, in binary and in JSON, by concurrency and by request rate, with `--collect-metrics`. It has to exit with 0 and without an error,
and to report a throughput for each load. For the ensemble and each of its steps it has to report the requests, queue and compute times of
the server's statistics. It cannot do three things with any server. Its JSON writes FP32 tensors with too few elements. `--shared-memory`
needs CUDA's libraries even for system memory. It warns that GPU metrics, which Trireme does not have, are missing.

## Running it

`cargo test -p trireme-e2e --test suite compat:: -- --include-ignored` does, in both modes. Against a server that runs already, one that serves
`tests/compat/models/repository`:

    tests/compat/run.py --url http://127.0.0.1:8000 [--grpc 127.0.0.1:8001] [--only TEXT]

A failed scenario is printed with the expected and the found answer. The scripts need Python 3.11, and for gRPC the
packages grpcio and tritonclient, which are in the tests' own Python, `.tools/python`.

## Adding to it

- A scenario is an entry in `tests/compat/scenarios/<theme>.json`: an `id`, a `why` of one line, and a request.
  `get`, `post` and `infer` are short for method and path; otherwise `method` and `path`. Further: `headers`; a body as
  `json`, `text`, or `parts`, a list of `json`, `text`, `hex`, `base64`, `bytes` (strings behind their lengths), arrays of
  numbers by datatype (`int32`, `fp32`, ...) and `repeat` (a part, so many times); `header_length` sets
  Inference-Header-Content-Length to the length of the first part; `compress`, `chunked`; `during` is a request to have
  in flight meanwhile (`times` of them; with `again` they are sent again until it is answered).
- A gRPC scenario has `grpc`, the call's name, with `message`, or for a stream `messages`, as protobuf's JSON;
  `raw_input_contents` is a list of parts as above. `metadata` is sent along.
- `make record` fetches a real Triton (the wheel nvidia-pytriton), asks it and writes `tests/compat/recorded/<theme>.json`;
  `tests/compat/record.py --help` has more. `compare` says how the recording is compared with an answer: `as` text (the default), json or status, `ignore`
  (members), `outputs` "in any order".
- `expect` is for answers that cannot be recorded, or not word for word: `status`, and `error`, `json`, `subset`, `text` or
  `pattern`. Where the recorded answer is another, `newer` says why; where there is none, `no_recording` does.
- `divergences.json` holds the differences on purpose: the reason, and Trireme's answer. `expected-failures.txt` holds scenarios of
  missing features, a reason each: an entry that begins to pass is an error, so the list can only shrink.
- Trireme serves `models/repository`. Each model has a twin of the same behaviour in `models/triton`, for the recording. The models
  in `models/python` are a `model.py` each, which both servers run; their lines in the log are compared, too.
- `tests/compat/run.py --docs` writes this page; `--check`, which the tests run, says when it is stale.
"""


def render(themes):
    """The page."""
    everything = [scenario for theme in themes for scenario in theme.scenarios]
    versions = sorted({theme.triton for theme in themes if theme.triton})
    return INTRODUCTION.format(
        total=len(everything),
        recorded=sum(scenario.recorded is not None for scenario in everything),
        version=", ".join(versions),
        themes="\n".join(map(theme_row, themes)),
        divergences=divergences({scenario.id: scenario for scenario in everything}),
        newer="\n".join(f"| `{s.id}` | {cell(s.newer)} |" for s in everything if s.newer),
        missing=missing(everything),
        **suites(json.loads(SUITES.read_text())),
    )


def suites(results):
    """Of the last run of Triton's own suites: each with its count, and the reasons of its misses."""
    rows = []
    for row in results["suites"]:
        reasons = {}
        for miss in row["misses"]:
            label, _, case = miss["case"].rpartition(": ")
            case = case.rpartition("::")[2]
            reasons.setdefault(miss["why"], []).append(f"{label}: {case}" if label else case)
        why = [f"{len(cases)}: {cell(reason)} ({shown_cases(cases)})" for reason, cases in reasons.items()]
        why += [cell(row["note"])] if row["note"] else []
        rows.append(f"| `{row['suite']}` | {row['passed']} of {row['cases']} | {'; '.join(why)} |")
    return {"suites": "\n".join(rows), "suites_version": results["version"], "untried": results["untried"]}


def shown_cases(cases):
    """The first few names of cases."""
    names = [f"`{name}`" for name in dict.fromkeys(cases)]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def theme_row(theme):
    different = sum(scenario.divergence is not None for scenario in theme.scenarios)
    failing = sum(scenario.expected_failure is not None for scenario in theme.scenarios)
    counts = " | ".join(str(count) if count else "" for count in (len(theme.scenarios), different, failing))
    return f"| `{theme.name}` | {theme.title}. {cell(theme.about)} | {counts} |"


def divergences(everything):
    """Each reason, with the answers of Triton and of Trireme."""
    groups = []
    for divergence in json.loads(DIVERGENCES.read_text()):
        rows = []
        for name, expect in divergence["scenarios"].items():
            recorded = everything[name].recorded
            triton = f"{recorded.status} {shown(recorded.text)}" if recorded else "not recorded"
            rows.append(f"| `{name}` | {triton} | {expect['status']} {shown(body(expect))} |")
        table = "| scenario | Triton | Trireme |\n|---|---|---|\n" + "\n".join(rows)
        groups.append(f"**{divergence['why']}**\n\n{table}")
    return "\n\n".join(groups)


def body(expect):
    """The expected body, as text."""
    if "error" in expect:
        return json.dumps({"error": expect["error"]}, ensure_ascii=False)
    if "text" in expect:
        return expect["text"]
    if "json" in expect:
        return json.dumps(expect["json"], ensure_ascii=False, separators=(",", ":"))
    if "subset" in expect:
        return f"… {json.dumps(expect['subset'], ensure_ascii=False, separators=(',', ':'))} …"
    return expect.get("pattern", "")


def missing(everything):
    failing = [scenario for scenario in everything if scenario.expected_failure]
    if not failing:
        return "Nothing: every scenario that is not listed above is answered as Triton does."
    rows = "\n".join(f"| `{s.id}` | {cell(s.why)} | {cell(s.expected_failure)} |" for s in failing)
    return f"| scenario | what | why it fails |\n|---|---|---|\n{rows}"


def shown(text):
    text = text.encode(errors="backslashreplace").decode()
    if len(text) > LONGEST_SHOWN:
        text = f"{text[: LONGEST_SHOWN - 40]} … {text[-30:]}"
    return f"`{cell(text)}`" if text else ""


def cell(text):
    """Escapes a text so that it stays within its cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("\0", "\\u0000")
