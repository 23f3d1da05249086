#!/usr/bin/env python3
"""Checks which crate may depend on which: the layers of the workspace, and one owner for each heavy dependency.

The tables below are the rules; `cargo metadata` lists the actual dependencies. Only direct ones are checked, including those for
development and build: a crate can name only these in its code. deny.toml has the same rules of owners for cargo-deny, which also
checks indirect dependencies.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A member may use members of layers above its own, but none of its own layer.
LAYERS = [
    ("domain", ["trireme-inference", "trireme-tasks", "trireme-telemetry"]),
    ("formats", ["trireme-model-files", "trireme-packing"]),
    ("libraries", ["trireme-protocol", "trireme-model-repository", "trireme-text", "trireme-bus", "trireme-columns"]),
    ("execution", ["trireme-bus-disk", "trireme-model-source", "trireme-engine"]),
    ("runtime", ["trireme-runtime", "trireme-generation", "trireme-jobs", "trireme-ops", "trireme-server"]),
    ("operations", ["trireme-operations", "trireme-triton-compat"]),
    ("dialects", ["trireme-dialects"]),
    ("services", []),  # the members in the folder services
    ("cli", ["trireme"]),
    ("tests", ["trireme-e2e", "trireme-fuzz", "trireme-bare-chain"]),
]

# Helpers for tests: this crate uses domain types only, and only tests use it.
TESTKIT = "trireme-testkit"
TESTKIT_USES = {"trireme-inference"}

# The only members that may use a heavy dependency.
OWNERS = {
    "arrow-array": {"trireme-columns"},
    "arrow-ipc": {"trireme-columns"},
    "async-nats": {"trireme-bare-chain", "trireme-bus"},
    "axum": {"trireme-dialects", "trireme-gateway", "trireme-runtime", "trireme-server"},
    "object_store": {"trireme-model-source"},
    "minijinja": {"trireme-text"},
    "multer": {"trireme-gateway"},
    "ort": {"trireme-generation", "trireme-model"},
    "parquet": {"trireme-columns"},
    "prost-reflect": {"trireme-model-repository"},
    "redb": {"trireme-bus-disk"},
    "reqwest": {"trireme-gateway", "trireme-model-source"},
    "tiktoken-rs": {"trireme-dialects"},
    "tokenizers": {"trireme-text"},
    "tonic": {"trireme-gateway", "trireme-protocol", "trireme-e2e"},
}

# Domain types outlive transports, so they must never need these.
NEVER = {"trireme-inference": {"prost", "serde_json", "tokio"}}


def read_members():
    command = ["cargo", "metadata", "--format-version", "1", "--offline", "--no-deps"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {package["name"]: package for package in json.loads(metadata.stdout)["packages"]}


def layer_faults(member, uses, layer_of, names):
    """The faults of `member`, which uses the members in `uses` (name -> kinds of dependency)."""
    for used, kinds in uses.items():
        if member == TESTKIT:
            if used not in TESTKIT_USES:
                yield f"{member} uses {used}: it may use {' and '.join(sorted(TESTKIT_USES))} only"
        elif used == TESTKIT:
            if kinds != {"dev"} and names[layer_of[member]] != "tests":
                yield f"{member} uses {used} outside its tests: move it to [dev-dependencies]"
        elif used == member:
            # A crate turns on its own features for its tests.
            if kinds != {"dev"}:
                yield f"{member} uses itself outside its tests"
        elif layer_of[used] == layer_of[member]:
            yield f"{member} uses {used}: both are in the layer '{names[layer_of[used]]}', whose members must not use each other"
        elif layer_of[used] > layer_of[member]:
            yield (
                f"{member} uses {used}: layer '{names[layer_of[member]]}' must not use layer '{names[layer_of[used]]}',"
                " which stands on it"
            )


def faults(members):
    names = [name for name, _ in LAYERS]
    layer_of = {member: number for number, (_, group) in enumerate(LAYERS) for member in group}
    services = {member for member, package in members.items() if Path(package["manifest_path"]).parent.parent == ROOT / "services"}
    layer_of |= dict.fromkeys(services, names.index("services"))
    known = layer_of.keys() | {TESTKIT}
    for member in sorted(known - members.keys()):
        yield f"{member} is in this script's tables but not in the workspace: remove it here"
    for member in sorted(members.keys() - known):
        yield f"{member} is in no layer: add it to LAYERS in scripts/check-dependencies.py"
    for member in sorted(members.keys() & known):
        kinds_of = {}
        for dependency in members[member]["dependencies"]:
            kinds_of.setdefault(dependency["name"], set()).add(dependency["kind"] or "normal")
        yield from layer_faults(
            member, {used: kinds for used, kinds in kinds_of.items() if used in known}, layer_of, names
        )
        for used in sorted(kinds_of):
            if member not in OWNERS.get(used, {member}):
                yield f"{member} uses {used}: only {' and '.join(sorted(OWNERS[used]))} may; go through it"
            if used in NEVER.get(member, ()):
                yield f"{member} uses {used}: it holds the domain's words, which need no {used}"


def main():
    members = read_members()
    found = list(faults(members))
    for fault in found:
        print(f"dependency rule: {fault}", file=sys.stderr)
    if found:
        sys.exit(1)
    print(f"dependency rules hold for {len(members)} crates")


if __name__ == "__main__":
    main()
