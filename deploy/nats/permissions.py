#!/usr/bin/env python3
"""Writes the users of NATS and their permissions: permissions.py --repository my-repository > users.conf

Each stage then reads the queues of its own models in the repository, writes those of the steps that follow them in an
ensemble, and speaks for its own models in the registry and among dead letters. Models can be named without a repository:

    permissions.py --tokenizer tokenizer --model minilm/1 minilm/2 pooling --postprocess pooling > users.conf

A model is NAME, NAME/VERSION (1 if not said) or, with priority levels, NAME/VERSION/LEVELS. Work may then go from every
stage to every model named. Without any of that a worker may read and write every queue: the broker cannot tell one
stage's models from another's.

A deployment with a name (--deployment, as the services have it) has subjects and streams of its own. Several on one broker,
each with its repository, have users of their own, such as production-gateway and staging-gateway:

    permissions.py --deployment production=models staging=next-models > users.conf

The file includes secrets/passwords.conf, made at the first start and no part of the
project: GATEWAY_PASSWORD: "..." and so on, one for each user.
"""

import argparse
import json
import pathlib
import re
import sys

STAGES = ("tokenizer", "model", "postprocess", "python")
# Names on the wire begin with `trireme`, or with the deployment's name after it; `~` stands for that here. It is in no
# model's token. Inboxes of a named deployment have it, too.
INBOX = "_INBOX.{}.>"
# The level of the bulk lane of every queue.
BULK_LEVEL = 10000
# Ops with which a chain of backend `postprocess` has to begin for the model service to host it.
REDUCTIONS = ["pool", "logit_score", "argmax", "top_k", "slice", "splade", "sparse", "spans", "records"]

# Streams on the broker's disk: settings, models loaded by request, dead letters, durable work and its bytes, what owners have
# used, and the stream that shows whether the disk takes writes.
ON_DISK = ["KV_~_settings", "KV_~_models", "~_dead", "~_jobs", "~_objects", "~_usage", "~_pulse"]
# Streams in its memory: registry, attempts, states of sequences, and bodies too large for a message.
IN_MEMORY = ["KV_~_registry", "~_attempts", "~_sequences", "~_claims"]


def answered(kind, subject):
    """Permissions for the subjects at which the broker takes acknowledgements (ACK) or the flow control (FC) of a stream's
    messages. With its feature js_ack_fc_v2 it names a domain and the account before the stream."""
    return [f"$JS.{kind}.{subject}", f"$JS.{kind}.*.*.{subject}"]


# The account's limits, which every process asks for at its start, and the broker's clock.
EVERYBODY = ["$JS.API.INFO", "$JS.API.STREAM.INFO.KV_~_settings"]
# A body too large for a message is stored at the broker, read by the receiver, and removed by sender or receiver.
CLAIMS = ["~.claim.>", "$JS.API.DIRECT.GET.~_claims.>", "$JS.API.STREAM.PURGE.~_claims"]
# How many times a message was begun that was delivered again: workers write and read it.
ATTEMPTS = ["~.attempts.*", "$JS.API.DIRECT.GET.~_attempts.~.attempts.*"]
# The states of sequences: gateways write and read them, and remove the parts of large ones.
SEQUENCES = ["~.sequences.>", "$JS.API.DIRECT.GET.~_sequences.>", "$JS.API.STREAM.PURGE.~_sequences"]
SEQUENCES += ["$JS.API.STREAM.MSG.GET.~_sequences"]
# Durable work: gateways follow and list the records, write and read the bytes.
JOBS = ["~.jobs.>", "$JS.API.DIRECT.GET.~_jobs.>", "$JS.API.STREAM.MSG.GET.~_jobs", "$JS.API.STREAM.PURGE.~_jobs"]
JOBS += ["$JS.API.CONSUMER.CREATE.~_jobs", *answered("FC", "~_jobs.>")]
JOBS += ["~.objects.>", "$JS.API.DIRECT.GET.~_objects.>", "$JS.API.STREAM.MSG.GET.~_objects"]
JOBS += ["$JS.API.STREAM.PURGE.~_objects"]
# Usage of the owners of keys: gateways write it, and read all of it for an answer.
USAGE = ["~.usage.>", "$JS.API.DIRECT.GET.~_usage.>", "$JS.API.STREAM.PURGE.~_usage"]
USAGE += ["$JS.API.CONSUMER.CREATE.~_usage", *answered("FC", "~_usage.>")]
# The deployment's settings.
SETTINGS = ["$JS.API.DIRECT.GET.KV_~_settings.$KV.~_settings.*"]

# Topics on which stages send, and those that they listen to.
SAID = [f"~.control.{topic}" for topic in ("heartbeat", "statistics_told", "content")]
HEARD = ["cancel", "announce", "models", "statistics", "tap", "logging", "pulse", "bulk.*.*", "content_chosen", "queue_refused.*.*"]
HEARD = [f"~.control.{topic}" for topic in HEARD]

# The code of models in Python may send requests to other models: gateways run them and answer to the stage's inbox.
CALLERS = ["python"]
CALLS = [f"~.control.{topic}" for topic in ("call", "hang_up")]


def followed(store):
    """Permissions to follow a store: for a consumer, and for the flow control of its messages."""
    return [f"$JS.API.STREAM.INFO.{store}", f"$JS.API.CONSUMER.CREATE.{store}", *answered("FC", f"{store}.>")]


def token(name):
    """A model's name as the services write it in subjects."""
    kept = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    return "".join(chr(byte) if byte in kept else f"={byte:02X}" for byte in name.encode()) or "="


def name_of(model):
    """The model's name in NAME, NAME/VERSION or NAME/VERSION/LEVELS."""
    return model.split("/")[0]


def streams(model):
    """The streams of a model version's queue, as the services name them: MODEL is NAME, NAME/VERSION or NAME/VERSION/LEVELS."""
    name, version, levels = (*model.split("/"), "", "")[:3]
    stream = f"~_work_{token(name)}_{int(version or 1)}"
    return [*([f"{stream}-{level}" for level in range(1, int(levels or 0) + 1)] or [stream]), f"{stream}-{BULK_LEVEL}"]


class Stage:
    """A stage: its models, and the names of models to which it sends work."""

    def __init__(self, models=(), next_models=()):
        self.models, self.next_models = list(models), sorted(set(next_models))


# === A model repository ===


def parse(text):
    """Parses a protobuf text to a list of (field, value); a value is a text or such a list."""
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


def stages_of(folder, config):
    """The stages that execute a model."""
    backend = (every(config, "backend") + [""])[0]
    if not backend and not every(config, "platform"):
        # The files show it.
        files = {path.name for path in folder.glob("*/*")}
        told = [("model.onnx", "model"), ("model.py", "python"), ("tokenizer.json", "tokenizer")]
        backend = next((backend for file, backend in told if file in files), "")
    backend = "python" if backend == "process" else backend
    if backend == "postprocess" and is_beside_model(config):
        return ["model", "postprocess"]
    return [backend if backend in ("tokenizer", "postprocess", "python") else "model"]


def is_beside_model(config):
    """Whether the model service hosts this model of backend `postprocess`."""
    parameters = {every(entry, "key")[0]: every(every(entry, "value")[0], "string_value")[0] for entry in every(config, "parameters")}
    first = re.split("[,:]", parameters.get("ops", ""))[0].strip()
    return parameters.get("beside_model", "true" if first in REDUCTIONS else "false") != "false"


def flows(ensemble):
    """Returns for each step of an ensemble its model, and the models of the steps that may come after it."""
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


def is_model_folder(folder):
    """Whether this is a folder of Hugging Face, which `trireme init` makes a model repository of."""
    has_versions = any(path.name.isdigit() for path in folder.iterdir() if path.is_dir())
    names = ("config.json", "modules.json", "tokenizer.json")
    return not has_versions and any((folder / name).is_file() for name in names)


def check_repository(root):
    """Ends the program where `root` is no model repository."""
    root = pathlib.Path(root)
    if not root.is_dir():
        sys.exit(f"{root}: there is no such folder")
    for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
        if is_model_folder(folder) and not (folder / "config.pbtxt").exists():
            sys.exit(
                f"{folder}: it is a model folder and no model repository, so its queues have no names yet: write the repository it is served as "
                f"by `trireme init {folder} my-repository`, and name that here and to the services"
            )


def read_repository(root):
    """The stages of a model repository."""
    check_repository(root)
    configs = {}
    for folder in sorted(path for path in pathlib.Path(root).iterdir() if path.is_dir()):
        file = folder / "config.pbtxt"
        configs[folder.name] = (folder, parse(file.read_text(encoding="utf-8")) if file.exists() else [])
    ensembles = {name: list(flows(config)) for name, (_, config) in configs.items() if "ensemble" in every(config, "platform")}

    def executed(name, seen=()):
        """The models that a step runs. For an ensemble, these are the models of its own steps."""
        if name not in ensembles or name in seen:
            return {name}
        return set().union(*(executed(step, (*seen, name)) for step, _ in ensembles[name]))

    after = {}
    for name, steps in ensembles.items():
        for step, later in steps:
            for model in executed(step):
                after.setdefault(model, set()).update(*(executed(other) for other in later))
    # Steps after a nested ensemble follow each of its models; the loop above adds those. Steps inside it are in its own
    # entry.
    stages = {stage: Stage() for stage in STAGES}
    for name, (folder, config) in configs.items():
        if name in ensembles:
            continue
        levels = re.search(r'\["priority_levels", "(\d+)"\]', json.dumps(config))
        versions = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdigit()) or [1]
        for stage in (stages[stage] for stage in stages_of(folder, config)):
            stage.models += [f"{name}/{version}" + (f"/{levels[1]}" if levels else "") for version in versions]
            stage.next_models = sorted({*stage.next_models, *after.get(name, ())})
    return stages


# === Users ===


def gateway(stages):
    """The gateway publishes work and takes it back, receives replies, follows the stores, counts waiting messages, creates all streams
    and removes queues without workers. It reads and acknowledges no queue."""
    kept = [*ON_DISK, *IN_MEMORY]
    models = dict.fromkeys(model for stage in stages if stage for model in stage.models)
    names = [name for model in models for name in streams(model)] if all(stages) else ["*"]
    queues = []
    for name in names:
        queues += [f"$JS.API.STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE", "INFO", "DELETE", "MSG.DELETE")]
        queues += [f"$JS.API.CONSUMER.{verb}" for verb in (f"CREATE.{name}.workers", f"INFO.{name}.workers", f"LIST.{name}")]
    made = [f"$JS.API.STREAM.{verb}.{name}" for name in kept for verb in ("CREATE", "UPDATE", "INFO")]
    # A stream that was lost with its broker is created again. The last subject asks who leads the notes of attempts.
    made += [f"$JS.API.STREAM.DELETE.{name}" for name in IN_MEMORY] + ["~.attempts.="]
    stores = []
    for name in ("settings", "registry", "models"):
        store = f"KV_~_{name}"
        stores += [f"$KV.~_{name}.>", f"$JS.API.DIRECT.GET.{store}.>", *followed(store)[1:]]
    stores += ["$JS.API.STREAM.PURGE.KV_~_models"]
    ours = ["~.work.>", "~.control.>", "~.pulse", "$JS.API.INFO", "$JS.API.STREAM.NAMES"]
    # An answer in parts may have more messages than `allow_responses` covers.
    ours += [INBOX.format(stage) for stage in CALLERS]
    denied = [f"$JS.API.STREAM.MSG.DELETE.{name}" for name in kept] + [f"$JS.API.STREAM.DELETE.{name}" for name in ON_DISK]
    return (
        [*ours, *made, *stores, *CLAIMS, *SEQUENCES, *JOBS, *USAGE, *queues],
        ["~.reply.>", "~.control.>"],
        denied if names == ["*"] else [],
    )


def worker(stage, calls=()):
    """A worker reads and acknowledges its queues, publishes to the next ones, replies to gateways, sends heartbeats, writes its
    registry entries, and follows the models loaded by request. Gateways make its streams. `None`: any models. `calls` are
    the subjects of requests to other models, where its models may send any."""
    work, names = ["~.work.>"], ["*"]
    own = ["~.dead.>", "$JS.API.DIRECT.GET.~_dead.>"]
    own += ["$KV.~_registry.>", "$JS.API.DIRECT.GET.KV_~_registry.>"]
    denied = [f"$JS.API.STREAM.MSG.GET.{name}" for name in [*ON_DISK, *IN_MEMORY]]
    if stage:
        mine = [token(name) for name in sorted({name_of(model) for model in stage.models})]
        own, denied = ["~.dead.=claim.>"], []
        for name in mine:
            # A worker reads the present letter before it stores a large one in parts, and an entry before it deletes
            # it.
            for stream, subject in (("~_dead", f"~.dead.{name}.>"), ("KV_~_registry", f"$KV.~_registry.{name}.>")):
                own += [subject, f"$JS.API.DIRECT.GET.{stream}.{subject}"]
        work = [f"~.work.{token(name)}.>" for name in stage.next_models]
        names = [stream for model in stage.models for stream in streams(model)]
    queues = []
    for name in names:
        queues += [f"$JS.API.CONSUMER.MSG.NEXT.{name}.workers", *answered("ACK", f"{name}.workers.>")]
        # For messages that have waited too long.
        queues += [f"$JS.API.CONSUMER.INFO.{name}.workers", f"$JS.API.STREAM.MSG.GET.{name}"]
    models = ["$JS.API.DIRECT.GET.KV_~_models.$KV.~_models.>", *followed("KV_~_models")]
    return (
        [*work, "~.reply.>", *own, *SAID, *calls, *EVERYBODY, *SETTINGS, *models, *CLAIMS, *ATTEMPTS, *queues],
        HEARD,
        denied,
    )


def admin():
    """An operator's tools: everything of Trireme's and of JetStream's."""
    return (
        ["~.>", "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$KV.>", "$O.>"],
        ["~.>", "$KV.>", "$O.>"],
    )


class Deployment:
    """A deployment: the beginning of its users' names, its models, and where its names on the wire differ."""

    def __init__(self, args, name, repository, prefix=""):
        self.root = f"trireme-{name}" if name else "trireme"
        self.inbox = args.inbox_prefix + (f".{self.root}." if name else ".")
        self.api = f"$JS.{args.jetstream_domain}.API." if args.jetstream_domain else "$JS.API."
        self.prefix = prefix
        named = {stage: getattr(args, stage) for stage in STAGES}
        if repository:
            self.stages = read_repository(repository)
        elif any(named.values()):
            everywhere = [name_of(model) for models in named.values() for model in models]
            self.stages = {stage: Stage(models, everywhere if models else ()) for stage, models in named.items()}
        else:
            self.stages = dict.fromkeys(STAGES)

    def listed(self, subjects):
        """Subjects as lines of a list."""
        starts = {"_INBOX.": self.inbox, "$JS.API.": self.api}
        lines = []
        for subject in subjects:
            start = next((start for start in starts if subject.startswith(start)), "")
            subject = starts.get(start, "") + subject.removeprefix(start)
            lines.append(f"            {json.dumps(subject.replace('~', self.root))}")
        return lines

    def block(self, user, publish, subscribe, deny=()):
        """One user in the server's configuration. Answers may go to the reply subject of a question."""
        name = f"{self.prefix}{user}"
        lines = [f"    {{ user: {name}, password: ${name.replace('-', '_').upper()}_PASSWORD, permissions: {{"]
        lines += ["        publish: { allow: [", *self.listed(publish)]
        lines += ["        ], deny: [", *self.listed(deny)] if deny else []
        lines += ["        ] }", "        subscribe: [", *self.listed([*subscribe, INBOX.format(user)])]
        lines += ["        ]", '        allow_responses: { max: 1024, expires: "10m" }', "    } }"]
        return "\n".join(lines)

    def users(self):
        """All users of the deployment."""
        users = [self.block("gateway", *gateway([self.stages[stage] for stage in STAGES]))]
        users += [self.block(stage, *worker(self.stages[stage], CALLS if stage in CALLERS else ())) for stage in STAGES]
        return [*users, self.block("admin", *admin())]


def main():
    """Prints the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", metavar="DIR", help="the model repository that all services have")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", nargs="+", default=[], metavar="MODEL", help=f"models of the {stage} service")
    parser.add_argument("--deployment", nargs="+", default=[""], metavar="NAME[=DIR]", help="names of deployments, and their model repositories")
    parser.add_argument("--jetstream-domain", metavar="DOMAIN", help="the services' --nats-jetstream-domain")
    parser.add_argument("--inbox-prefix", default="_INBOX", metavar="PREFIX", help="the services' --nats-inbox-prefix")
    args = parser.parse_args()
    deployments = []
    for named in args.deployment:
        name, _, repository = named.partition("=")
        if name and not re.fullmatch(r"[A-Za-z0-9-]{1,32}", name):
            parser.error(f"--deployment {name}: expected letters, digits and '-', 32 at most")
        several = len(args.deployment) > 1
        deployment = Deployment(args, name, repository or args.repository, f"{name}-" if several else "")
        if several and not all(deployment.stages.values()):
            parser.error(f"--deployment {name}: on a shared broker, models have to be named, or a repository")
        deployments.append(deployment)
    users = [user for deployment in deployments for user in deployment.users()]
    print("# The users of the broker, and their permissions. Made by permissions.py; see docs/deployment.md.")
    print("include secrets/passwords.conf")
    print("authorization {\n    users: [\n" + "\n".join(users) + "\n    ]\n}")


if __name__ == "__main__":
    main()
