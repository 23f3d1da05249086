#!/usr/bin/env python3
"""Writes the users of NATS and what each may do: permissions.py > users.conf

Without arguments a worker may read every queue, because queues are named after models and the broker cannot tell one
stage's models from another's. Named, each stage reads its own queues only:

    permissions.py --tokenizer tokenizer --model minilm/1 minilm/2 --postprocess pooling > users.conf

A model is NAME, NAME/VERSION (1 if not said) or, with priority levels, NAME/VERSION/LEVELS. The file includes secrets/passwords.conf, made at the first start and no
part of the project: GATEWAY_PASSWORD: "..." and so on, one for each user.
"""

import argparse
import json

INBOX = "_INBOX.{}.>"
REGISTRY = "KV_trireme_registry"
# Messages that were given up; bodies too large for a message.
KEPT = ["trireme_dead", "trireme_claims"]

# Questions to every process: the NATS service API, and Trireme's own.
QUESTIONS = ["$SRV.>", "trireme.control.>"]
# The account's limits, asked at start; what everybody makes who finds it missing.
JETSTREAM = ["$JS.API.INFO"] + [f"$JS.API.STREAM.{verb}.{name}" for name in [REGISTRY, *KEPT] for verb in ("INFO", "CREATE")]
# A body too large for a message is left with the broker, read by who gets the message, and removed by who made it.
CLAIMS = ["trireme.claim.>", "$JS.API.DIRECT.GET.trireme_claims.>", "$JS.API.STREAM.PURGE.trireme_claims"]


# Reading the registry: gateways do, and workers whose queue limits follow the other workers.
REGISTRY_READ = [f"$JS.API.CONSUMER.{verb}.{REGISTRY}.>" for verb in ("CREATE", "INFO", "DELETE")]
REGISTRY_READ += [f"$JS.API.CONSUMER.CREATE.{REGISTRY}", f"$JS.FC.{REGISTRY}.>"]


def streams(model):
    """The streams of a model version, as the services name them: MODEL is NAME, NAME/VERSION or NAME/VERSION/LEVELS."""
    name, version, levels = (*model.split("/"), "", "")[:3]
    kept = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    token = "".join(chr(byte) if byte in kept else f"={byte:02X}" for byte in name.encode())
    stream = f"trireme_work_{token}_{int(version or 1)}"
    return [f"{stream}-{level}" for level in range(1, int(levels or 0) + 1)] or [stream]


def gateway():
    """Sends work, gets answers, follows the registry, counts what waits. Reads no queue and writes no registry entry."""
    states = ["$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.*"]
    return (
        ["trireme.work.>", "trireme.cancel", "trireme.control.>", *JETSTREAM, *CLAIMS, *REGISTRY_READ, *states],
        ["trireme.reply.>", *QUESTIONS],
    )


def worker(models):
    """Reads and confirms its queues, writes the next ones, answers gateways, keeps its registry entries."""
    queues = []
    for name in [stream for model in models for stream in streams(model)] or ["*"]:
        queues += [f"$JS.API.STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE", "INFO")]
        queues += [f"$JS.API.CONSUMER.{verb}.{name}.workers" for verb in ("CREATE", "DURABLE.CREATE", "INFO", "MSG.NEXT")]
        queues += [f"$JS.API.DIRECT.GET.{name}", f"$JS.ACK.{name}.workers.>"]
    return (
        [
            *("trireme.work.>", "trireme.reply.>", "trireme.dead.>", "$KV.trireme_registry.>"),
            # What a worker that leaves has counted; what was loaded by request, asked at start.
            *("trireme.control.statistics_told", "trireme.control.recall"),
            *(JETSTREAM + CLAIMS + REGISTRY_READ + queues),
        ],
        ["trireme.cancel", *QUESTIONS],
    )


def admin():
    """A person's tools: everything of Trireme's and of JetStream's."""
    return (
        ["trireme.>", "$JS.API.>", "$JS.ACK.>", "$JS.FC.>", "$KV.>", "$O.>", "$SRV.>"],
        ["trireme.>", "$KV.>", "$O.>", "$SRV.>"],
    )


def block(user, publish, subscribe):
    """One user as the server's configuration has it. Answers go where the question asked for them."""
    lines = [f"    {{ user: {user}, password: ${user.upper()}_PASSWORD, permissions: {{", "        publish: ["]
    lines += [f"            {json.dumps(subject)}" for subject in publish]
    lines += ["        ]", "        subscribe: ["]
    lines += [f"            {json.dumps(subject)}" for subject in [*subscribe, INBOX.format(user)]]
    lines += ["        ]", '        allow_responses: { max: 1024, expires: "10m" }', "    } }"]
    return "\n".join(lines)


def main():
    """Prints the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = ("tokenizer", "model", "postprocess")
    for stage in stages:
        parser.add_argument(f"--{stage}", nargs="+", default=[], metavar="MODEL", help=f"models of the {stage} service")
    args = parser.parse_args()
    users = [block("gateway", *gateway())]
    users += [block(stage, *worker(getattr(args, stage))) for stage in stages]
    users += [block("admin", *admin())]
    print("# Who may connect, and what each may do. Made by permissions.py; see docs/deployment.md.")
    print("include secrets/passwords.conf")
    print("authorization {\n    users: [\n" + "\n".join(users) + "\n    ]\n}")


if __name__ == "__main__":
    main()
