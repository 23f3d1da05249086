#!/usr/bin/env python3
"""Sends every scenario to a real Triton and records the answers in tests/compat/recorded.

Either to a Triton that serves what triton.assemble_repository() makes (default model control mode, no other flags):

    record.py --triton-url http://127.0.0.1:8000 [--grpc 127.0.0.1:8001]

or to one that is started for it:

    record.py --tritonserver PATH [--backends DIR] [--libraries DIR] [--python PATH]

The wheel nvidia-pytriton holds a tritonserver with the python backend that runs without a GPU: `make record` fetches it
(scripts/setup-triton.sh) and records from it. After recording, `run.py --check` says where expectations have to be looked at again.
"""

import argparse
import http.client
import json
import urllib.request
from pathlib import Path

import memory
import scenarios
from servers import DEFAULT, SERVERS, servers_at
from triton import Triton

DEFAULT_PORT = 18100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--triton-url", help="HTTP address of a Triton that runs")
    which.add_argument("--tritonserver", type=Path, help="the program to start")
    parser.add_argument("--grpc", metavar="ADDRESS", help="gRPC address of a Triton that runs; without it gRPC is not recorded")
    parser.add_argument("--backends", type=Path, help="its backend directory")
    parser.add_argument("--libraries", type=Path, help="where its shared libraries are")
    parser.add_argument("--python", type=Path, help="the interpreter for the python backend")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="HTTP port; gRPC and metrics take the next two")
    parser.add_argument("--server", default="", choices=["", *SERVERS], help="only what a server of this setup answers")
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios whose id contains this")
    arguments = parser.parse_args()
    if arguments.triton_url:
        return record(arguments.triton_url, arguments.grpc, arguments.only, DEFAULT)
    place = (arguments.backends, arguments.libraries, arguments.python, arguments.port)
    for server in (server for server in SERVERS if arguments.server in ("", server)):
        with Triton(arguments.tritonserver, *place, server) as triton:
            record(triton.url, triton.grpc, arguments.only, server, triton)
            if server == "python" and not arguments.only:
                lines = ",\n".join(f"  {json.dumps(line)}" for line in triton.marked_lines())
                scenarios.LOG.write_text(f"[\n{lines}\n]\n")


def ask(servers, scenario, triton):
    """The answer, if the scenario is to be recorded and there is one."""
    if scenario.no_recording:
        return None
    try:
        return servers[scenario.protocol](Triton.adapted(scenario.request))
    except (OSError, http.client.HTTPException) as error:
        died = triton is not None and triton.revive()
        print(f"{scenario.id}: no answer: {'the server died' if died else error}")
        return None


def record(url, grpc, only, server, triton=None):
    servers = servers_at(url, grpc)
    with urllib.request.urlopen(f"{url}/v2") as response:
        version = json.load(response)["version"]
    for theme in (theme for theme in scenarios.load() if theme.server == server and any(only in s.id for s in theme.scenarios)):
        answers = {}
        with memory.objects([theme]):
            for scenario in theme.scenarios:
                chosen = only in scenario.id and scenario.protocol in servers
                answer = ask(servers, scenario, triton) if chosen else scenario.recorded
                if answer and triton:
                    answer.text = scenarios.placed(answer.text, triton.repository)
                if answer:
                    answers[scenario.id] = answer.to_json()
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
        text = f'{{\n  "triton": {json.dumps(version)},\n  "answers": {{\n{lines}\n  }}\n}}\n'
        scenarios.recorded_path(theme.name).write_text(text)
        print(f"{theme.name}: {len(answers)} answers of Triton {version}")


if __name__ == "__main__":
    main()
