#!/usr/bin/env python3
"""Writes the users of NATS and what each may do: permissions.py --repository my-repository > users.conf

Each stage then reads the queues of its own models in the repository, writes those of the steps that follow them in an
ensemble, and speaks for its own models in the registry and among dead letters. Models can be named without a repository:

    permissions.py --tokenizer tokenizer --model minilm/1 minilm/2 --postprocess pooling > users.conf

A model is NAME, NAME/VERSION (1 if not said) or, with priority levels, NAME/VERSION/LEVELS. Work may then go from every
stage to every model named. Without any of that a worker may read and write every queue: the broker cannot tell one
stage's models from another's. The file includes secrets/passwords.conf, made at the first start and no part of the
project: GATEWAY_PASSWORD: "..." and so on, one for each user.
"""

import argparse
import json
import pathlib
import re

STAGES = ("tokenizer", "model", "postprocess")
INBOX = "_INBOX.{}.>"
# Echoes to oneself: they tell that the broker has read what was sent before.
FENCE = "_INBOX.{}.fence.*"
REGISTRY = "KV_trireme_registry"
# Messages that were given up; bodies too large for a message.
KEPT = ["trireme_dead", "trireme_claims"]

# Questions to every process: the NATS service API, and what stages are asked.
SERVICE = ["$SRV.>"]
ASKED = [f"trireme.control.{topic}" for topic in ("statistics", "models", "recall_workers", "tap", "logging")]
# The account's limits, asked at start; what everybody looks for, and asks a gateway for who finds it missing.
JETSTREAM = ["$JS.API.INFO"] + [f"$JS.API.STREAM.INFO.{name}" for name in [REGISTRY, *KEPT]]
# A body too large for a message is left with the broker, read by who gets the message, and removed by either.
CLAIMS = ["trireme.claim.>", "$JS.API.DIRECT.GET.trireme_claims.>", "$JS.API.STREAM.PURGE.trireme_claims"]

# How often a message that came again was begun: noted and looked up by workers.
ATTEMPTS = ["trireme.attempts.*", "$JS.API.DIRECT.GET.trireme_attempts.>"]

# Reading the registry: gateways do.
REGISTRY_READ = [f"$JS.API.CONSUMER.{verb}.{REGISTRY}.>" for verb in ("CREATE", "INFO", "DELETE")]
REGISTRY_READ += [f"$JS.API.CONSUMER.CREATE.{REGISTRY}", f"$JS.FC.{REGISTRY}.>"]


def token(name):
    """A model's name as the services write it in subjects."""
    kept = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    return "".join(chr(byte) if byte in kept else f"={byte:02X}" for byte in name.encode()) or "="


def name_of(model):
    """The name in NAME, NAME/VERSION or NAME/VERSION/LEVELS."""
    return model.split("/")[0]


def streams(model):
    """The streams of a model version, as the services name them: MODEL is NAME, NAME/VERSION or NAME/VERSION/LEVELS. The last
    is that of scheduled work, which is there where the model has a queue policy."""
    name, version, levels = (*model.split("/"), "", "")[:3]
    stream = f"trireme_work_{token(name)}_{int(version or 1)}"
    return [*([f"{stream}-{level}" for level in range(1, int(levels or 0) + 1)] or [stream]), f"{stream}-scheduled"]


class Stage:
    """What a stage has to do with: its models, and the names of models that its work goes to."""

    def __init__(self, models=(), next_models=()):
        self.models, self.next_models = list(models), sorted(set(next_models))


# === A model repository ===


def parse(text):
    """A text of protobuf as a list of (field, value); a value is a text or such a list."""
    text = re.sub(r'("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')|#[^\n]*', lambda found: found[1] or "", text)
    words = re.findall(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[\w.+-]+|[{}\[\]<>:]', text)

    def value():
        word = words.pop(0)
        if word == ":":
            return value()
        if word == "[":
            items = []
            while words[0] != "]":
                items.append(value())
            words.pop(0)
            return items
        if word in "{<":
            return message()
        return word[1:-1] if word[0] in "\"'" else word

    def message():
        fields = []
        while words and words[0] not in "}>":
            name, found = words.pop(0), value()
            several = isinstance(found, list) and not (found and isinstance(found[0], tuple)) and found
            fields += [(name, item) for item in several] if several else [(name, found)]
        if words:
            words.pop(0)
        return fields

    return message()


def every(fields, name):
    """The values of a field."""
    return [value for field, value in fields if field == name]


def stage_of(folder, config):
    """Which stage executes a model."""
    backend = (every(config, "backend") + [""])[0]
    if not backend and not every(config, "platform"):
        # The files tell it.
        files = {path.name for path in folder.glob("*/*")}
        backend = "tokenizer" if "tokenizer.json" in files and "model.onnx" not in files else ""
    return backend if backend in ("tokenizer", "postprocess") else "model"


def flows(ensemble):
    """For each step of an ensemble its model, and the models of the steps that do not come before it."""
    steps = every(every(ensemble, "ensemble_scheduling")[0], "step")
    ends = lambda step, field: {every(entry, "value")[0] for entry in every(step, field)}
    before = {}

    def ancestors(index):
        if index not in before:
            before[index] = set()
            makers = [other for other, step in enumerate(steps) if ends(step, "output_map") & ends(steps[index], "input_map")]
            before[index] = set(makers).union(*(ancestors(other) for other in makers))
        return before[index]

    model = lambda step: every(step, "model_name")[0]
    for index, step in enumerate(steps):
        yield model(step), {model(other) for at, other in enumerate(steps) if at != index and at not in ancestors(index)}


def read_repository(root):
    """The stages of a model repository."""
    configs = {}
    for folder in sorted(path for path in pathlib.Path(root).iterdir() if path.is_dir()):
        file = folder / "config.pbtxt"
        configs[folder.name] = (folder, parse(file.read_text(encoding="utf-8")) if file.exists() else [])
    ensembles = {name: list(flows(config)) for name, (_, config) in configs.items() if "ensemble" in every(config, "platform")}

    def executed(name, seen=()):
        """The models that a step stands for: an ensemble's are those it is made of."""
        if name not in ensembles or name in seen:
            return {name}
        return set().union(*(executed(step, (*seen, name)) for step, _ in ensembles[name]))

    after = {}
    for name, steps in ensembles.items():
        for step, later in steps:
            for model in executed(step):
                after.setdefault(model, set()).update(*(executed(other) for other in later))
    # What follows an ensemble within another follows each of its steps: that is above. What comes within it is its own.
    stages = {stage: Stage() for stage in STAGES}
    for name, (folder, config) in configs.items():
        if name in ensembles:
            continue
        stage = stages[stage_of(folder, config)]
        levels = re.search(r'\["priority_levels", "(\d+)"\]', json.dumps(config))
        versions = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdigit()) or [1]
        stage.models += [f"{name}/{version}" + (f"/{levels[1]}" if levels else "") for version in versions]
        stage.next_models = sorted({*stage.next_models, *after.get(name, ())})
    return stages


# === Users ===


def gateway(stages):
    """Sends work and takes it back, gets answers, follows the registry, counts what waits, and makes the streams of all. Reads
    no queue and writes no registry entry."""
    kept = [REGISTRY, *KEPT, "trireme_attempts"]
    names = [name for stage in stages if stage for model in stage.models for name in streams(model)] if all(stages) else ["*"]
    queues = []
    for name in names:
        queues += [f"$JS.API.STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE", "INFO", "MSG.DELETE")]
        queues += [f"$JS.API.CONSUMER.{verb}.{name}.workers" for verb in ("CREATE", "DURABLE.CREATE")]
        queues += [f"$JS.API.CONSUMER.LIST.{name}"]
    made = [f"$JS.API.STREAM.{verb}.{name}" for name in kept for verb in ("CREATE", "INFO")]
    ours = ["trireme.work.>", "trireme.cancel", "trireme.control.>", "$JS.API.INFO", *made]
    denied = [f"$JS.API.STREAM.{verb}.{name}" for name in kept for verb in ("UPDATE", "MSG.DELETE")]
    return (
        [*ours, *CLAIMS, *REGISTRY_READ, *queues],
        ["trireme.reply.>", *SERVICE, "trireme.control.>", "trireme.streams.>"],
        denied if names == ["*"] else [],
    )


def worker(stage):
    """Reads and confirms its queues, writes the next ones, answers gateways, keeps its registry entries, asks gateways for the
    streams that it needs. `None`: any models."""
    own, work = ["trireme.dead.>", "$KV.trireme_registry.>"], ["trireme.work.>"]
    names, needs = ["*"], ["trireme.streams.>"]
    if stage:
        mine = sorted({name_of(model) for model in stage.models})
        own = ["trireme.dead.=claim.>"]
        own += [subject.format(token(name)) for name in mine for subject in ("trireme.dead.{}.*", "$KV.trireme_registry.{}.>")]
        work = [f"trireme.work.{token(name)}.>" for name in stage.next_models]
        # What is scheduled is put there by the workers that are about to take it.
        work += [f"trireme.work.{token(name)}.*.scheduled" for name in mine if name not in stage.next_models]
        names = [stream for model in stage.models for stream in streams(model)]
        needs = ["trireme.streams.*", *(f"trireme.streams.work.{token(name)}.*" for name in mine)]
    queues = []
    for name in names:
        queues += [f"$JS.API.CONSUMER.MSG.NEXT.{name}.workers", f"$JS.API.STREAM.INFO.{name}", f"$JS.ACK.{name}.workers.>"]
    return (
        [
            *work,
            "trireme.reply.>",
            *own,
            # What a worker that leaves has counted; what was loaded by request, asked at start.
            *("trireme.control.statistics_told", "trireme.control.recall"),
            *(JETSTREAM + CLAIMS + ATTEMPTS + needs + queues),
        ],
        ["trireme.cancel", *SERVICE, *ASKED],
    )


def admin():
    """A person's tools: everything of Trireme's and of JetStream's."""
    return (
        ["trireme.>", "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$KV.>", "$O.>", "$SRV.>"],
        ["trireme.>", "$KV.>", "$O.>", "$SRV.>"],
    )


def listed(subjects):
    """Subjects as lines of a list."""
    return [f"            {json.dumps(subject)}" for subject in subjects]


def block(user, publish, subscribe, deny=()):
    """One user as the server's configuration has it. Answers go where the question asked for them."""
    lines = [f"    {{ user: {user}, password: ${user.upper()}_PASSWORD, permissions: {{"]
    lines += ["        publish: { allow: [", *listed([*publish, FENCE.format(user)])]
    lines += ["        ], deny: [", *listed(deny)] if deny else []
    lines += ["        ] }", "        subscribe: [", *listed([*subscribe, INBOX.format(user)])]
    lines += ["        ]", '        allow_responses: { max: 1024, expires: "10m" }', "    } }"]
    return "\n".join(lines)


def main():
    """Prints the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", metavar="DIR", help="the model repository that all services have")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", nargs="+", default=[], metavar="MODEL", help=f"models of the {stage} service")
    args = parser.parse_args()
    named = {stage: getattr(args, stage) for stage in STAGES}
    if args.repository:
        stages = read_repository(args.repository)
    elif any(named.values()):
        everywhere = [name_of(model) for models in named.values() for model in models]
        stages = {stage: Stage(models, everywhere) for stage, models in named.items()}
    else:
        stages = dict.fromkeys(STAGES)
    users = [block("gateway", *gateway([stages[stage] for stage in STAGES]))]
    users += [block(stage, *worker(stages[stage])) for stage in STAGES]
    users += [block("admin", *admin())]
    print("# Who may connect, and what each may do. Made by permissions.py; see docs/deployment.md.")
    print("include secrets/passwords.conf")
    print("authorization {\n    users: [\n" + "\n".join(users) + "\n    ]\n}")


if __name__ == "__main__":
    main()
