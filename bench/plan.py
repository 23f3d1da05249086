"""The plan of the benchmark: each part starts what it compares (deployments of Trireme, raw ONNX Runtime). The sides take turns: in a turn
each is measured once, one after the other, so that a ratio has sides that met the same machine. The order changes from turn to turn."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cached
import folders
import large
import lengths
import owners
import processes
import stages
import windows
from options import ROOT
from raw import read_texts
from servers import DIRECT, BenchError, Deployment, free_port, load

MODEL = "sentence_embedding"
# The services of the encoder, each a process. The model service pools by itself.
STAGES = [(stage, [f"trireme-{stage}"]) for stage in ("tokenizer", "model", "postprocess")]
PARTS = ["texts", "openvino", "lengths", "lone", "stages", "processes", "openai", "recipe", "int8", "windows", "large", "identity", "python", "owners", "cached", "simulated"]
# The turns of parts that have another number: texts and lone are near their bars, the others take long.
TURNS = {"texts": 6, "lone": 6, "openvino": 3, "lengths": 2, "stages": 2, "large": 2, "cached": 2, "processes": 2, "windows": 2}
USUAL_TURNS = 4
CONCURRENCY = [1, 16, 64]
POOL = 64  # texts that raw runs may sort: as many as the most clients have in flight
POOL_BUDGETS = [128, 256, 512, 1024]  # larger batches of so few texts have texts of very different lengths
LONE_TEXTS = 40
OPENAI_TEXTS = 64  # of the large request; with more, few answers would be measured
BUDGETS = [512, 1024, 2048]
LAYOUTS = ["narrow", "wide"]
WORKERS = [1, 8, 32]
TRITON = ROOT / ".tools/triton"
CHAIN_BYTES = 512  # about what a message of the identity ensemble has as headers and body
LARGE_ELEMENTS = 4 << 20  # of FP32: 16 MiB
DELAY_SECONDS = 0.05  # as bench/repositories/simulated says
NATS_CONFIG = "host: 127.0.0.1\nport: {port}\nhttp: 127.0.0.1:{monitor}\nmax_payload: 8MB\njetstream {{ store_dir: \"{store}\", max_mem: 2GB {more} }}\n"
POLICY = """
dynamic_batching {
  priority_levels: 2 default_priority_level: 1
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 10000000 max_queue_size: 10000 }
}
"""
OPENVINO = """
optimization {{ execution_accelerators {{ cpu_execution_accelerator: [ {{ name: "openvino" {parameters} }} ] }} }}
"""


class Bench:
    """What one part of the benchmark needs. Its measurements go into `results`, by the names of their rows."""

    def __init__(self, options, work, part=None):
        self.options, self.work, self.part = options, work, part
        self.binaries = Path(options.binaries)
        self.logs = work / "logs"
        self.logs.mkdir()
        self.deployments, self.raw = {}, {}
        self.nats = None
        self.results, self.turn, self.best = {}, 0, {}

    # === Deployments ===

    def repository(self, name, extra=""):
        target = self.work / name
        subprocess.run([ROOT / "scripts/assemble-repository.sh", self.options.model, target], check=True)
        with open(target / "minilm/config.pbtxt", "a") as config:
            config.write(extra)
        return target

    def with_policy(self, repository):
        """The repository with a queue policy and levels of priority for the first step."""
        target = self.work / "policy"
        shutil.copytree(repository, target)
        with open(target / "step_a/config.pbtxt", "a") as config:
            config.write(POLICY)
        return target

    def all_in_one(self, name, models, model, environment=None, extra=("--allow-metrics=false",)):
        """`trireme serve` with these words for models."""
        deployment = Deployment(name, self.logs)
        deployment.start("serve", [
            self.binaries / "trireme", "serve", *models, "--http-address", "127.0.0.1",
            "--http-port", deployment.port, "--allow-grpc=false", *extra,
        ], environment)
        self.deployments[name] = deployment
        deployment.wait_ready(model)

    def triton(self, name, repository, model):
        """A real Triton with the same model.py files."""
        deployment, server = Deployment(name, self.logs), TRITON / "tritonserver"
        environment = {
            "LD_LIBRARY_PATH": str(TRITON / "libraries"),
            # Its backend finds the Python for its models by PATH.
            "PATH": f"{TRITON / 'bin'}:{os.environ['PATH']}",
        }
        deployment.start("tritonserver", [
            server / "bin/tritonserver", "--model-repository", repository, "--backend-directory", server / "backends",
            "--http-address", "127.0.0.1", "--http-port", deployment.port, "--allow-grpc=false", "--allow-metrics=false",
            "--log-info=false",
        ], environment)
        self.deployments[name] = deployment
        deployment.wait_ready(model)

    def services(self, name, repository, model, stages, extra=("--allow-metrics=false",), broker="", environments={}):
        """Services on a broker of their own, with more flags of the gateway and more lines of the broker's `jetstream` block. `environments` has
        variables of processes, by their stages."""
        deployment = Deployment(name, self.logs)
        url, store = self.start_nats(deployment, broker, environments.get("nats-server"))
        on_bus = ["--nats-url", url, "--model-repository", repository]
        deployment.start("gateway", [
            self.binaries / "trireme-gateway", *on_bus, "--http-address", "127.0.0.1", "--http-port", deployment.port,
            "--allow-grpc=false", *extra,
        ], environments.get("gateway"))
        self.deployments[name] = deployment
        for stage, argv in stages:
            deployment.start(stage, [self.binaries / argv[0], *argv[1:], *on_bus], environments.get(stage))
        deployment.wait_ready(model)
        return on_bus

    def start_nats(self, deployment, broker="", environment=None):
        port, deployment.monitor = free_port(), free_port()
        store = self.work / f"nats-{deployment.name}"
        config = self.work / f"nats-{deployment.name}.conf"
        config.write_text(NATS_CONFIG.format(port=port, monitor=deployment.monitor, store=store, more=broker))
        deployment.start("nats-server", [self.options.nats_server, "--config", config], environment)
        return f"nats://127.0.0.1:{port}", store

    def start(self):
        """Starts what the part compares, and nothing else: idle processes would slow down the others."""
        {
            "texts": self.start_texts, "openvino": self.start_openvino, "lengths": self.start_lengths, "lone": self.start_texts,
            "stages": self.start_stages, "processes": lambda: processes.start(self, self.repository("plain"), MODEL, STAGES),
            "openai": self.start_encoder, "recipe": self.start_recipe, "int8": self.start_int8, "windows": lambda: windows.start(self, STAGES),
            "large": lambda: large.start(self), "identity": self.start_identity, "python": self.start_python,
            "owners": lambda: owners.start(self, self.repository("plain"), MODEL, STAGES),
            "cached": lambda: cached.start(self, MODEL, STAGES), "simulated": lambda: None,
        }[self.part]()

    def start_encoder(self):
        repository = self.repository("plain")
        self.all_in_one("all in one", ["--model-repository", repository], MODEL)
        self.services("services", repository, MODEL, STAGES)

    def start_texts(self):
        self.start_raw("raw", [])
        self.start_encoder()

    def start_openvino(self):
        if not self.options.openvino:
            print("    left out: there is no OpenVINO here", flush=True)
            return
        self.start_raw("raw", [])
        properties = {"INFERENCE_PRECISION_HINT": self.options.openvino_precision} if self.options.openvino_precision else {}
        listed = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in properties.items())
        accelerated = self.repository("accelerated", OPENVINO.format(parameters=listed))
        options = ["--openvino", self.options.openvino, "--properties", json.dumps(properties)]
        if self.options.openvino.endswith(".so"):
            python, environment = sys.executable, {"TRIREME_OPENVINO_LIBRARY": self.options.openvino}
        else:
            python, environment = self.options.openvino, {"ORT_DYLIB_PATH": library_of(self.options.openvino)}
        self.start_raw("raw openvino", options, python)
        self.all_in_one("openvino", ["--model-repository", accelerated], MODEL, environment)

    def start_lengths(self):
        lengths.start(self, STAGES)
        self.start_encoder()

    def start_stages(self):
        stages.start(self, self.repository("plain"), MODEL, STAGES)

    def start_recipe(self):
        self.all_in_one("all in one", ["--model-repository", self.repository("plain")], MODEL)
        recipe = folders.make(Path(self.options.model), self.work / folders.NAME)
        folders.first_answers(self, recipe)
        folders.serve(self, "recipe", recipe)

    def start_int8(self):
        recipe = folders.make(Path(self.options.model), self.work / folders.NAME)
        missing = folders.optimize(self, recipe)
        if missing:
            print(f"    the row of int8 is left out: {missing}", flush=True)
            return
        folders.serve(self, "recipe", recipe)
        folders.serve(self, "int8", recipe, "--precision", "int8")
        folders.fidelity(self, "recipe", "int8")

    def start_identity(self):
        repository, worker = ROOT / "bench/repositories/identity", [("model", ["trireme-model"])]
        self.all_in_one("identity", ["--model-repository", repository], "identity_chain")
        self.services("identity services", repository, "identity_chain", worker)
        chain = self.deployments["bare chain"] = Deployment("bare chain", self.logs)
        chain.url, _ = self.start_nats(chain, "")
        self.services("identity policy services", self.with_policy(repository), "identity_chain", worker)

    def start_python(self):
        """The chain in Python, beside that of `identity`, whose step costs nothing."""
        models = ROOT / "bench/repositories/python"
        self.all_in_one("identity", ["--model-repository", ROOT / "bench/repositories/identity"], "identity_chain")
        python = ["--python", sys.executable]
        self.all_in_one("python", ["--model-repository", models, *python], "python_chain")
        self.services("python services", models, "python_chain", [("python", ["trireme-python", "--allow-python", *python])])
        if (TRITON / "tritonserver").exists():
            self.triton("python triton", models, "python_chain")

    def stop(self):
        for deployment in self.deployments.values():
            deployment.stop()
        for name in list(self.raw):
            self.stop_raw(name)

    # === Raw ONNX Runtime ===

    def start_raw(self, name, extra, python=sys.executable):
        argv = [python, ROOT / "bench/raw.py", "--model", self.options.model, "--texts", self.options.texts, *extra]
        with open(self.raw_log(name), "w") as log:
            process = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.raw[name] = process
        self.answer(name)

    def stop_raw(self, name):
        process = self.raw.pop(name)
        process.stdin.close()
        process.wait()

    def ask(self, name, **request):
        self.raw[name].stdin.write(json.dumps(request) + "\n")
        self.raw[name].stdin.flush()
        return self.answer(name)

    def answer(self, name):
        line = self.raw[name].stdout.readline()
        if not line:
            last = self.raw_log(name).read_text(errors="replace").splitlines()[-1:]
            raise BenchError(f"{name} ended: {''.join(last) or 'it printed nothing'}")
        return json.loads(line)

    def raw_log(self, name):
        return self.logs / f"{name.replace(' ', '-')}.log"

    # === Measuring ===

    def keep(self, key, value):
        self.results.setdefault(key, []).append(value)

    def measure(self):
        """The measurements of the part: those of each turn, and those that are made once."""
        if self.part == "simulated":
            self.simulated()
            return
        for name in self.raw if self.part != "lone" else ():
            self.choose(name)
        turns = self.options.turns or TURNS.get(self.part, USUAL_TURNS)
        for self.turn in range(turns):
            self.sides()
            print(f"    turn {self.turn + 1} of {turns}", flush=True)
        if "raw openvino" in self.raw:
            self.cosine()

    def sides(self):
        {
            "texts": self.texts, "openvino": self.openvino, "lengths": lambda: lengths.turn(self, MODEL), "lone": self.lone,
            "stages": lambda: stages.measure(self, MODEL), "processes": lambda: processes.measure(self, MODEL), "openai": self.openai,
            "recipe": self.recipe, "int8": self.int8, "windows": lambda: windows.turn(self), "large": lambda: large.measure(self),
            "identity": self.identity, "python": self.python, "owners": lambda: owners.turn(self, MODEL), "cached": lambda: cached.turn(self, MODEL),
        }[self.part]()

    def ordered(self, sides):
        """The sides in the order of this turn: every other turn begins with the last one."""
        return sides if self.turn % 2 == 0 else sides[::-1]

    def measure_in_order(self, *sides):
        for side in self.ordered(sides):
            side()

    def load(self, name, model, in_flight, many=1, key=None, seconds=None, texts=None, form="binary"):
        """A side: a deployment under load. Its row has the deployment's name unless there is a `key`."""
        def side():
            row = f"1 request of {many}" if many > 1 else in_flight
            measured = load(
                self.binaries / "trireme", self.deployments[name], model, seconds or self.options.seconds, in_flight,
                texts or (self.options.texts if model in (MODEL, folders.NAME) else None), many, form,
            )
            self.keep(key or f"{name} / {row}", measured)
        return side

    def recipe(self):
        for row in ((64, 1), (1, self.options.batch_texts)):
            folders.turn(self, ("recipe", folders.NAME), ("all in one", MODEL), *row)

    def int8(self):
        if "int8" in self.deployments:
            folders.turn(self, ("int8", folders.NAME), ("recipe", folders.NAME), 64)

    def identity(self):
        """An ensemble of three steps that copy: what the way of a request costs."""
        of = lambda name: self.load(name, "identity_chain", 64)
        self.measure_in_order(of("identity"), self.bare_chain, of("identity services"), of("identity policy services"))

    def bare_chain(self):
        """Three hops over JetStream without Trireme, with as many messages in flight."""
        deployment = self.deployments["bare chain"]
        argv = [self.binaries / "trireme-bare-chain", deployment.url, 64, CHAIN_BYTES, self.options.seconds]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"trireme-bare-chain failed: {done.stderr.strip()}")
        self.keep("bare chain / 64", json.loads(done.stdout))

    def python(self):
        """An ensemble of three steps in Python: many requests at a time, one at a time, and one step with a large tensor."""
        trireme, served = self.binaries / "trireme", ("python", "python services", "python triton")
        self.measure_in_order(*(self.load(name, "python_chain", 64) for name in served if name in self.deployments))
        lone = {name: load(trireme, self.deployments[name], f"{name}_chain", 1, 1)["p50_ms"] for name in self.ordered(["python", "identity"])}
        self.keep("python / lone step, less identity", {"p50_ms": (lone["python"] - lone["identity"]) / 3})
        deployment = self.deployments["python"]
        before = statistics_of(deployment, "step_a")
        load(trireme, deployment, "step_a", self.options.seconds / 2, 1, dimension=LARGE_ELEMENTS)
        after = statistics_of(deployment, "step_a")
        nanoseconds = (after["ns"] - before["ns"]) / max(after["count"] - before["count"], 1)
        self.keep("python / 16 MiB through a step", {"gb_per_second": 4 * LARGE_ELEMENTS / nanoseconds})

    def texts(self):
        """Texts: raw offline, over all and over pools, and served to some and many clients, and in one large request."""
        many = self.options.batch_texts
        self.measure_in_order(
            lambda: self.again("raw"), self.load("all in one", MODEL, 64), lambda: self.again("raw", POOL), self.load("services", MODEL, 64),
            self.load("all in one", MODEL, 16), self.load("all in one", MODEL, 1, many),
        )

    def openvino(self):
        """The same on OpenVINO, beside its own raw best and that of the plain provider."""
        if "openvino" in self.deployments:
            many = self.options.batch_texts
            self.measure_in_order(
                lambda: self.again("raw openvino"), self.load("openvino", MODEL, 64), self.load("openvino", MODEL, 1, many),
                lambda: self.again("raw", key="raw beside openvino / best"),
            )

    def offline(self, raw, budgets=BUDGETS):
        """Texts per second of raw ONNX Runtime that knows all texts, with each layout and size of batches."""
        for layout in LAYOUTS:
            for budget in budgets:
                measured = self.ask(raw, what="offline", budget=budget, layout=layout, seconds=self.options.seconds / 2)
                self.keep(f"{raw} / {layout}, {budget} tokens", measured)

    def choose(self, raw):
        """Finds the layout and the size of batches with which raw ONNX Runtime is fastest: over all texts, and in this layout over pools of
        no more texts than a server has in flight. The turns measure these."""
        self.offline(raw)
        rate = lambda key: self.results[key][-1]["texts_per_second"]
        settings = [(layout, budget) for layout in LAYOUTS for budget in BUDGETS]
        layout, budget = self.best[raw, None] = max(settings, key=lambda one: rate(f"{raw} / {one[0]}, {one[1]} tokens"))
        if raw == "raw" and self.part == "texts":
            for budget in POOL_BUDGETS:
                measured = self.ask(raw, what="offline", budget=budget, layout=layout, seconds=self.options.seconds / 2, pool=POOL)
                self.keep(pool_key(raw, budget), measured)
            self.best[raw, POOL] = layout, max(POOL_BUDGETS, key=lambda budget: rate(pool_key(raw, budget)))

    def again(self, raw, pool=None, key=None):
        """Raw ONNX Runtime with the settings that were chosen."""
        layout, budget = self.best[raw, pool]
        measured = self.ask(raw, what="offline", budget=budget, layout=layout, seconds=self.options.seconds, pool=pool)
        self.keep(key or best_key(raw, pool), {**measured, "settings": f"{layout}, {budget} tokens"})

    def lone(self):
        """One text at a time, raw and served in quick turns, because their difference is smaller than a machine's drift. There
        are few texts, so that all sides process each of them several times; otherwise the faster side would get other texts."""
        texts = self.work / "lone.txt"
        folders.write_texts(texts, read_texts(self.options.texts)[:LONE_TEXTS])
        served = lambda name: load(self.binaries / "trireme", self.deployments[name], MODEL, 1, 1, texts)
        measured = {}
        for name in self.ordered(["raw", "all in one", "services"]):
            measured[name] = self.ask("raw", what="lone", seconds=1, count=LONE_TEXTS) if name == "raw" else served(name)
            self.keep(f"{name} / lone", measured[name])
        for name in ("all in one", "services"):
            self.keep(f"{name} / lone, less raw", {"p50_ms": measured[name]["p50_ms"] - measured["raw"]["p50_ms"]})

    def openai(self):
        """OpenAI's /v1/embeddings beside the v2 protocol, in turns: the CPU time of one text as JSON, and the rate of many texts in
        the densest form that each has."""
        for name in ("all in one", "services"):
            for many, forms in ((1, ["json", "openai"]), (OPENAI_TEXTS, ["binary", "openai-base64"])):
                what = "one text" if many == 1 else f"1 request of {many}"
                self.measure_in_order(*(
                    self.load(name, MODEL, 1, many, key=f"{name} / {form}, {what}", seconds=self.options.seconds / 2, form=form) for form in forms
                ))

    def simulated(self):
        """Throughput of a model that only waits, with a growing number of workers on one queue."""
        repository = ROOT / "bench/repositories/simulated"
        on_bus = self.services("simulated", repository, "simulated", [("worker-1", ["trireme-model"])])
        deployment = self.deployments["simulated"]
        for count in WORKERS:
            for number in range(len(deployment.processes) - 1, count + 1):
                deployment.start(f"worker-{number}", [self.binaries / "trireme-model", *on_bus])
            # Workers print this line when they are ready. The warm-up of the load covers the rest of their
            # start.
            for process in deployment.processes:
                wait_for_line(process, "ready")
            # Four requests for each worker: one is executed, and the others wait so that the queue does not
            # run empty.
            measured = load(self.binaries / "trireme", deployment, "simulated", self.options.seconds, 4 * count)
            measured["ideal"] = count / DELAY_SECONDS
            self.keep(f"simulated / {count} workers", measured)

    def cosine(self):
        """The lowest cosine of embeddings by raw OpenVINO and raw plain ONNX Runtime."""
        plain, fast = (self.ask(name, what="embed", count=100)["vectors"] for name in ("raw", "raw openvino"))
        dots = [sum(l * r for l, r in zip(left, right)) for left, right in zip(plain, fast)]
        self.results["openvino / lowest cosine"] = [{"cosine": min(dots)}]


def pool_key(raw, budget):
    """The row of raw runs over pools of texts."""
    return f"{raw}, pools of {POOL} / {budget} tokens"


def best_key(raw, pool=None):
    """The row of raw runs in the turns, with the settings that were chosen."""
    return f"{raw}, pools of {pool} / best" if pool else f"{raw} / best"


def statistics_of(deployment, model):
    """How often a model was executed, and for how long in all, by the server's own statistics."""
    with DIRECT.open(f"http://{deployment.address}/v2/models/{model}/stats", timeout=10) as answer:
        return json.load(answer)["model_stats"][0]["inference_stats"]["compute_infer"]


def library_of(python):
    """The ONNX Runtime library in that Python's installation."""
    where = "import onnxruntime, pathlib; print(*pathlib.Path(onnxruntime.__file__).parent.glob('capi/libonnxruntime.so.*'))"
    return subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()


def wait_for_line(process, word):
    import time
    for _ in range(600):
        process.check()
        log = process.log.read_text(errors="replace")
        if process.stage in ("nats-server", "gateway") or word in log:
            return
        time.sleep(0.1)
    raise BenchError(f"{process.name} is not ready after 60 s: see {process.log}")
