"""Processes under test: start them, wait until they serve, add up their CPU time, stop them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

READY_SECONDS = 120
STOP_SECONDS = 40
TICKS = os.sysconf("SC_CLK_TCK")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BenchError(Exception):
    """An error that the user can fix."""


def run_script(main):
    """Runs a benchmark. On SIGTERM it stops its processes; an error that the user can fix is one line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: stopped"))
    try:
        main()
    except BenchError as error:
        sys.exit(f"bench: {error}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """One process with a log."""

    def __init__(self, name, argv, logs, environment=None):
        self.name = name
        self.log = logs / f"{name}.log"
        self.argv, self.environment = [str(word) for word in argv], {**os.environ, **(environment or {})}
        self.start()

    def start(self):
        """Starts the process, or starts it again after it was stopped."""
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, env=self.environment)

    def check(self):
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise BenchError(f"{self.name} ended with {self.process.returncode}; the end of {self.log}:\n{tail}")

    def cpu_seconds(self):
        """User and system time of all threads so far, in seconds."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss(self):
        """Resident memory, in bytes."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self):
        """The most resident memory so far, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

    def cpu_by_thread(self):
        """The same by the names of threads, without numbers at their ends."""
        seconds = {}
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                with open(f"/proc/{self.process.pid}/task/{task}/stat") as stat:
                    name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
            except OSError:
                continue
            name, fields = name.rstrip("-0123456789"), fields.split()
            seconds[name] = seconds.get(name, 0) + (int(fields[11]) + int(fields[12])) / TICKS
        return seconds

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Deployment:
    """Processes that serve together, and the port for clients."""

    def __init__(self, name, logs):
        self.name, self.logs = name, logs
        self.processes = []
        self.port = free_port()
        self.monitor = None  # the broker's port for its statistics

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self, name, argv, environment=None):
        process = Process(f"{self.name}-{name}", argv, self.logs, environment)
        process.stage = name
        self.processes.append(process)

    def wait_ready(self, model):
        until = time.monotonic() + READY_SECONDS
        while not self.is_ready(model):
            if time.monotonic() > until:
                raise BenchError(f"{self.name} does not serve {model} after {READY_SECONDS} s: see {self.logs}")
            time.sleep(0.1)

    def is_ready(self, model):
        """Whether the model is served. An error if a process has ended."""
        for process in self.processes:
            process.check()
        try:
            with DIRECT.open(f"http://{self.address}/v2/models/{model}/ready", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def cpu(self):
        return {process.stage: process.cpu_seconds() for process in self.processes}

    def logged(self, field):
        """The last number that the first process wrote as this field of a line of its log."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.processes[0].log.read_text(errors="replace"))
        found = re.findall(rf"\b{field}=([0-9.e+-]+)", text)
        if not found:
            raise BenchError(f"the log of {self.name} has no field '{field}': see {self.processes[0].log}")
        return float(found[-1])

    def broker_bytes(self):
        """Bytes that the broker has received and sent so far; 0 without a broker."""
        if not self.monitor:
            return 0
        with DIRECT.open(f"http://127.0.0.1:{self.monitor}/varz", timeout=10) as answer:
            statistics = json.load(answer)
        return statistics["in_bytes"] + statistics["out_bytes"]

    def stop(self):
        for process in reversed(self.processes):
            process.stop()
        self.processes = []


def load(trireme, deployment, model, seconds, concurrency, texts=None, dimension=1, form="binary", headers=None, warm_up=None):
    """One measurement with `trireme bench`, including the CPU time of each process. The warm-up sends the same texts as the measurement."""
    warm_up = min(1, seconds / 4) if warm_up is None else warm_up
    argv = [trireme, "bench", "--server", deployment.address, "--model", model, "--json", "--seconds", seconds]
    argv += ["--concurrency", concurrency, "--warmup-seconds", warm_up, "--dimension", dimension, "--form", form]
    argv += ["--texts", texts] if texts else []
    argv += [word for name, value in (headers or {}).items() for word in ("--header", f"{name}: {value}")]
    before, threads, crossed = deployment.cpu(), deployment.processes[0].cpu_by_thread(), deployment.broker_bytes()
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"trireme bench failed on {deployment.name}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    after, threads_after = deployment.cpu(), deployment.processes[0].cpu_by_thread()
    # CPU time and bytes include the warm-up's requests, so the number of requests is scaled by the whole
    # time under load.
    requests = result["requests_per_second"] * (seconds + warm_up)
    per_request = lambda seconds: 1e6 * seconds / max(requests, 1)
    result["broker_bytes"] = (deployment.broker_bytes() - crossed) / max(requests, 1)
    result["cpu_us"] = {stage: per_request(after[stage] - before[stage]) for stage in after}
    result["thread_cpu_us"] = {
        name: per_request(seconds - threads.get(name, 0)) for name, seconds in threads_after.items()
    }
    return result
