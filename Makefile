# The list of commands. `make demo` and `make test` are all that a newcomer needs; CI runs the same targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TOOLS := $(CURDIR)/.tools

# What programs and tests find by name. Set one in the environment to use your own.
export ORT_DYLIB_PATH ?= $(TOOLS)/onnxruntime/libonnxruntime.so
export TRIREME_NATS_SERVER ?= $(TOOLS)/nats-server/nats-server
export TRIREME_PYTHON ?= $(TOOLS)/python/bin/python
export TRIREME_DEMO_REPOSITORY ?= $(TOOLS)/demo-repository

.PHONY: help
help: ## Lists these commands
	@sed -nE 's/^([a-z][a-z-]*):.*## (.*)$$/\1\t\2/p' Makefile | while IFS=$$'\t' read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: setup-demo build ## Serves three sentences from a real model and shows the time of each step (KEEP=1 keeps the server)
	@scripts/demo.py $(if $(KEEP),--keep)

.PHONY: demo-translation
demo-translation: setup-demo build ## Serves a small translation model: number words, English to Swahili and back (KEEP=1 keeps the server)
	@scripts/demo-translation.py $(if $(KEEP),--keep)

.PHONY: test
test: setup ## The tests that a change has to pass, without lint and the longest (see test-all)
	@echo "==> cargo build (the first one takes some minutes); the end-to-end tests run these binaries"
	cargo build --workspace
	@scripts/run-tests.py

.PHONY: test-all
test-all: setup lint ## Lint and all tests: those of `make test`, the longest, both modes of every theme, the manifests, a cluster of brokers
	cargo build --workspace
	@scripts/run-tests.py --all
	@$(MAKE) --no-print-directory kubernetes-test
	@$(MAKE) --no-print-directory cluster-test

.PHONY: chaos
chaos: setup ## The whole system under load while everything in it fails at random (FAULTS=500 REQUESTS=100000 LINES=100000 SEED=1 STORAGE=memory|file|both HAND_OVER=1 ONLY="kill node"; BROKERS=3: on a cluster, whose nodes fail, too, with clocks CLOCKS=60 seconds apart)
	cargo build --release --workspace
	cargo run --release -p trireme-e2e --bin chaos -- --faults $(or $(FAULTS),60) --requests $(or $(REQUESTS),10000) --lines $(or $(LINES),100000) --seed $(or $(SEED),1) --storage $(or $(STORAGE),both) \
		--brokers $(or $(BROKERS),1) $(if $(CLOCKS),--clocks $(CLOCKS)) $(if $(ONLY),--only "$(ONLY)") $(if $(HAND_OVER),--hand-over)

.PHONY: soak
soak: setup ## Half an hour of steady load, to see that memory, descriptors and threads do not grow (MINUTES=30)
	cargo build --release --workspace
	cargo run --release -p trireme-e2e --bin soak -- --minutes $(or $(MINUTES),30)

.PHONY: overload
overload: setup ## Up to ten times the load that the system can take: goodput and refusals, with a plot in bench/results
	cargo build --release --workspace
	mkdir -p bench/results
	cargo run --release -p trireme-e2e --bin overload -- --json bench/results/overload.json
	"$(TRIREME_PYTHON)" -c 'import matplotlib' 2>/dev/null || "$(TRIREME_PYTHON)" -m pip install --quiet matplotlib
	"$(TRIREME_PYTHON)" scripts/plot-overload.py bench/results/overload.json bench/results/overload.svg

.PHONY: scale
scale: setup ## The cost of hundreds of workers and gateways, with a table and a plot in bench/results (SIZES=small,medium,large SCENES=idle,join,read,cluster,crowd,restart)
	cargo build --release --workspace
	mkdir -p bench/results
	measured=0; cargo run --release -p trireme-e2e --bin scale -- $(if $(SIZES),--sizes $(SIZES)) $(if $(SCENES),--scenes $(SCENES)) --json bench/results/scale.json --markdown bench/results/scale.md || measured=$$?; \
	"$(TRIREME_PYTHON)" -c 'import matplotlib' 2>/dev/null || "$(TRIREME_PYTHON)" -m pip install --quiet matplotlib; \
	if [[ -s bench/results/scale.json ]]; then "$(TRIREME_PYTHON)" scripts/plot-scale.py bench/results/scale.json bench/results/scale.svg; fi; \
	exit $$measured

.PHONY: bench-generation
bench-generation: setup build ## Tokens per second of generation against plain loops over the same files (MODEL=directory of a version)
	"$(TRIREME_PYTHON)" bench/generation.py $(or $(MODEL),tests/models/generation/m2m100) --trireme target/release/trireme

.PHONY: build
build: ## Builds target/release/trireme
	@echo "==> building trireme (the first build takes some minutes)"
	cargo build --release -p trireme

.PHONY: bench
bench: setup-demo ## Measures everything beside raw ONNX Runtime in one table (MODEL=DIR, TEXTS=FILE, TURNS=4, SECONDS_EACH=2, BENCH_ARGUMENTS="--only lone --half choose")
	@scripts/fetch-openvino.sh
	@scripts/fetch-nats-server.sh
	@scripts/setup-bench.sh
	@$(if $(TEXTS),,scripts/setup-bench-texts.sh)
	@scripts/setup-triton.sh || echo "==> Triton is left out of the comparison: see the message above"
	@echo "==> building release binaries (the first build takes some minutes)"
	cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess -p trireme-python -p trireme-bare-chain
	@$(TOOLS)/bench-python/bin/python bench/run.py $(if $(MODEL),--model $(MODEL)) $(if $(TEXTS),--texts $(TEXTS)) \
		$(if $(TURNS),--turns $(TURNS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH)) $(BENCH_ARGUMENTS)

.PHONY: bench-quick
bench-quick: setup-demo ## Compares this tree's speed with a git revision in three minutes, and fails when it is more than 5 % slower (REVISION=HEAD~1 TURNS=8)
	@scripts/fetch-nats-server.sh
	@scripts/setup-bench.sh
	@other=$$(scripts/build-revision.sh $(or $(REVISION),HEAD~1)) && \
		cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess && \
		$(TOOLS)/bench-python/bin/python bench/quick.py "$$other" $(if $(TURNS),--turns $(TURNS))

.PHONY: bench-overtake
bench-overtake: setup-demo ## Throughput and latency over how long later requests may overtake a request: simulated, and served in turns (MODEL=DIR, TEXTS=FILE, TURNS=5, SECONDS_EACH=4)
	@scripts/setup-bench.sh
	@$(if $(TEXTS),,scripts/setup-bench-texts.sh)
	cargo test -p trireme-model --lib -- the_curve --nocapture
	@echo "==> building the release binary (the first build takes some minutes)"
	cargo build --release -p trireme
	@$(TOOLS)/bench-python/bin/python -B bench/overtake.py $(if $(MODEL),--model $(MODEL)) $(if $(TEXTS),--texts $(TEXTS)) \
		$(if $(TURNS),--turns $(TURNS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH))

.PHONY: bench-starts
bench-starts: setup-demo ## Whether first starts choose alike: several measure the model with empty caches, and serve the same texts in turns (MODEL=DIR, TEXTS=FILE, STARTS=10, TURNS=3, SECONDS_EACH=4)
	@scripts/setup-bench.sh
	@$(if $(TEXTS),,scripts/setup-bench-texts.sh)
	@echo "==> building the release binary (the first build takes some minutes)"
	cargo build --release -p trireme
	@$(TOOLS)/bench-python/bin/python -B bench/starts.py $(if $(MODEL),--model $(MODEL)) $(if $(TEXTS),--texts $(TEXTS)) \
		$(if $(STARTS),--starts $(STARTS)) $(if $(TURNS),--turns $(TURNS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH))

.PHONY: bench-bulk
bench-bulk: setup-demo ## Durable work beside raw ONNX Runtime and beside live traffic: batches, `trireme bulk`, queued requests (ROUNDS=3, SECONDS_EACH=20, QUEUED=100000, BENCH_ARGUMENTS="--only queued")
	@scripts/fetch-nats-server.sh
	@scripts/setup-bench.sh
	@echo "==> building release binaries (the first build takes some minutes)"
	cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess
	@$(TOOLS)/bench-python/bin/python -B bench/bulk.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH)) \
		$(if $(QUEUED),--queued $(QUEUED)) $(BENCH_ARGUMENTS)

.PHONY: bench-peers
bench-peers: setup-demo ## Measures Trireme beside Triton, infinity-emb and sie-server, one at a time (MODEL=DIR, TEXTS=FILE, ROUNDS=3, SECONDS_EACH=5, BENCH_ARGUMENTS="--rows triton")
	@scripts/fetch-nats-server.sh
	@scripts/setup-bench.sh
	@$(if $(TEXTS),,scripts/setup-bench-texts.sh)
	@scripts/setup-python.sh
	@scripts/setup-peers.sh
	@echo "==> building release binaries (the first build takes some minutes)"
	cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess -p trireme-python
	@$(TOOLS)/bench-python/bin/python -B bench/peers.py $(if $(MODEL),--model $(MODEL)) $(if $(TEXTS),--texts $(TEXTS)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH)) $(BENCH_ARGUMENTS)

.PHONY: gpu-kit
gpu-kit: ## Packs target/gpu-kit for a machine with an NVIDIA GPU that can fetch nothing; there, python3 gpu-kit.py RESULT.json runs the GPU tests and bench-gpu in ten minutes (MODEL=DIR of fp32, PROFILE=dev to try it)
	@PROFILE=$(or $(PROFILE),release) MODEL=$(MODEL) scripts/gpu-kit.sh

.PHONY: bench-gpu
bench-gpu: ## Measures the encoder on an NVIDIA GPU beside raw ONNX Runtime on it; without a GPU it ends with 2 and fetches nothing (MODEL=DIR of fp32, TEXTS=FILE, ROUNDS=3, SECONDS_EACH=5)
	@scripts/setup-gpu.sh
	@$(MAKE) --no-print-directory setup-demo
	@scripts/fetch-nats-server.sh
	@echo "==> building release binaries (the first build takes some minutes)"
	cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess
	@$(TOOLS)/gpu-python/bin/python -B bench/gpu.py $(if $(MODEL),--model $(MODEL)) $(if $(TEXTS),--texts $(TEXTS)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH)) $(BENCH_ARGUMENTS)

.PHONY: lint
lint: ## Formatting, clippy, shell scripts, dependencies between crates and modules; advisories and licences where cargo-deny is installed, workflows where check-jsonschema is
	@echo "==> lint"
	cargo fmt --all --check
	@for script in scripts/*.sh deploy/*.sh deploy/kubernetes/*.sh .ci/run; do bash -n "$$script"; done
	@if command -v shellcheck >/dev/null; then shellcheck --external-sources --source-path=SCRIPTDIR scripts/*.sh deploy/*.sh deploy/kubernetes/*.sh .ci/run; fi
	@scripts/check-dependencies.py
	@scripts/check-modules.py
	@scripts/check-workflows.py
	@scripts/check-errors.py
	@scripts/check-sentences.py
	@bench/readme.py --check
	@scripts/make-book.py --prepare
	@if command -v cargo-deny >/dev/null; then cargo deny check; fi
	@if command -v check-jsonschema >/dev/null; then check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml; fi
	@# .ci/run has clippy compile the crates, which finds the same.
	@if [[ -z "$$RUSTC_WORKSPACE_WRAPPER" ]]; then cargo clippy --workspace --all-targets -- -D warnings; fi

.PHONY: check
check: setup ## Format, clippy, and the tests of crates that differ from BASE and of those that depend on them, without the end-to-end tests (BASE=origin/main); or one crate alone, with its own features (CRATE=trireme-bus)
ifdef CRATE
	cargo clippy -p $(CRATE) --all-targets -- -D warnings
	cargo test -p $(CRATE)
else
	@$(MAKE) --no-print-directory lint
	@scripts/run-tests.py --changed-since $(or $(BASE),$$(git rev-parse --verify --quiet origin/main || echo HEAD))
endif

.PHONY: flaky
flaky: setup ## All tests five times beside a load on every CPU; lists those that pass only on an idle machine (TIMES=5)
	cargo build --workspace
	@for time in $$(seq $(or $(TIMES),5)); do echo "==> $$time"; scripts/run-tests.py --all --load | grep -E '^==> (passed only|FAILED|tests)'; done

# What `make nightly` runs: minutes to half an hour each, hours together.
NIGHTLY ?= bench-quick verify-test contracts-test compose-test-compiled cluster-test upgrade-test fuzz siege chaos soak

.PHONY: nightly
nightly: ## What takes too long for CI, one after the other, each whatever became of those before (NIGHTLY="chaos soak")
	@failed=; for target in $(NIGHTLY); do echo "==> make $$target"; $(MAKE) --no-print-directory $$target || failed+=" $$target"; done; \
	if [[ -n $$failed ]]; then echo "==> FAILED:$$failed"; exit 1; fi

.PHONY: kubernetes-test
kubernetes-test: ## Renders deploy/kubernetes and the Helm chart, and checks every object against its schema
	@scripts/kubernetes-test.sh

.PHONY: upgrade-test
upgrade-test: setup ## A deployment of REVISION becomes one of this tree, process by process, under load (REVISION=HEAD~1): nothing is lost
	cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess
	@old=$$(scripts/build-revision.sh $(or $(REVISION),HEAD~1)) && python3 tests/upgrade/upgrade_test.py "$$old" target/release

.PHONY: cluster-test
cluster-test: ## Three brokers with the shipped configuration: they form a cluster, and lose nothing when one is killed, hangs or is replaced
	@python3 tests/cluster/cluster_test.py

.PHONY: verify-test
verify-test: setup-demo ## Model folders of every kind, made by sentence-transformers, transformers, model2vec, gliner and gliner2: the server's answers against theirs (ONLY=dense,splade; TABLE=docs/supported-models.md writes the page of kinds; VERIFY_PYTHON=a Python that has them)
	@if [[ -z "$(VERIFY_PYTHON)" ]]; then scripts/setup-verify.sh; fi
	cargo build --workspace
	"$(or $(VERIFY_PYTHON),$(TOOLS)/verify-python/bin/python)" tests/verify/verify_test.py $(if $(ONLY),--only $(ONLY)) $(if $(TABLE),--table $(TABLE))

.PHONY: record
record: setup ## Records the answers of tests/compat from a real Triton, which is fetched as a wheel (SERVER=python, ONLY=python_bls)
	@scripts/setup-triton.sh
	"$(TRIREME_PYTHON)" -B tests/compat/record.py --tritonserver $(TOOLS)/triton/tritonserver/bin/tritonserver \
		--backends $(TOOLS)/triton/tritonserver/backends --libraries $(TOOLS)/triton/libraries --python $(TOOLS)/triton/bin/python \
		$(if $(SERVER),--server $(SERVER)) $(if $(ONLY),--only $(ONLY))

.PHONY: triton-suites
triton-suites: setup ## Triton's own suites, fetched from its repository, against this server; writes their table in docs/compatibility.md (TRITON_SERVER_SOURCE=DIR, ONLY=L0_infer)
	@scripts/setup-triton-suites.sh
	cargo build -p trireme
	"$(TOOLS)/triton-suites-python/bin/python" -B tests/triton-suites/run.py target/debug/trireme \
		--source "$(or $(TRITON_SERVER_SOURCE),$(TOOLS)/triton-server)" --backend "$(or $(TRITON_BACKEND_SOURCE),$(TOOLS)/triton-python-backend)" \
		$(if $(ONLY),--only $(ONLY))
	@"$(TRIREME_PYTHON)" -B tests/compat/run.py --docs

.PHONY: stage-test
stage-test: ## Whether a program speaks docs/stage-protocol.md: make stage-test COMMAND="my-program --flag" (DATATYPE=FP32 INPUT=IN OUTPUT=OUT)
	@[[ -n "$(COMMAND)" ]] || { echo "which program? make stage-test COMMAND=target/debug/reverse"; exit 2; }
	python3 -B tests/stages/conformance.py $(if $(DATATYPE),--datatype $(DATATYPE)) $(if $(INPUT),--input $(INPUT)) $(if $(OUTPUT),--output $(OUTPUT)) -- $(COMMAND)

.PHONY: seeds-test
seeds-test: ## The model.py files and clients of five published posts, byte for byte (their texts in $$TRIREME_REFERENCE_DIR/seeds; SEEDS_PYTHON=a Python with tests/seeds/requirements.txt)
	@if [[ -z "$(SEEDS_PYTHON)" && -d "$(TRIREME_REFERENCE_DIR)/seeds" ]]; then scripts/setup-seeds.sh; fi
	cargo build --workspace
	"$(or $(SEEDS_PYTHON),$(wildcard $(TOOLS)/seeds-python/bin/python),python3)" -B tests/seeds/seeds_test.py target/debug/trireme $(if $(ONLY),--only $(ONLY))

.PHONY: perf-analyzer
perf-analyzer: setup ## NVIDIA's perf_analyzer measures an ensemble over HTTP, gRPC and streams, in one process and as services
	@scripts/setup-perf-analyzer.sh
	cargo build --workspace
	cargo test --workspace --test suite perf_analyzer:: -- --include-ignored --test-threads 1 --nocapture

.PHONY: wheel
wheel: ## Builds target/wheels/trireme_serve-….whl, which brings ONNX Runtime and nats-server as wheels of their own (PROFILE=release)
	@scripts/make-wheel.sh target/wheels $(PROFILE)

.PHONY: wheel-test
wheel-test: ## Installs a wheel of the debug profile in an empty Python environment without a compiler; serves a model folder from there, in one process and as several
	@scripts/make-wheel.sh target/debug-wheels dev
	@env -u ORT_DYLIB_PATH python3 tests/installed/wheel_test.py target/debug-wheels/*.whl

.PHONY: image
image: ## Builds the image trireme, which has every stage: docker run -p 8000:8000 trireme serve hf://org/name (needs docker; TARGET=export: with PyTorch, for folders without an ONNX file)
	docker build --target $(or $(TARGET),trireme) --tag $(if $(filter-out trireme,$(TARGET)),trireme-$(TARGET),trireme) .

.PHONY: image-test
image-test: setup-demo ## The same with the programs of the debug profile: no rights, a read-only file system, healthy, an answer (needs docker; TARGET=export fetches gigabytes)
	cargo build --workspace
	@python3 -B tests/installed/image_test.py target/debug/trireme $(TARGET)

.PHONY: book
book: ## The site of docs/ in target/book/site, whose links are checked (needs mdbook: cargo install --locked mdbook)
	@scripts/make-book.py

.PHONY: s3-test
s3-test: setup-demo ## Serves models from a server with S3's interface (moto), over a connection that is cut, too
	cargo build --workspace
	@scripts/s3-test.sh

.PHONY: observability-test
observability-test: setup ## Traces, the dashboard and its rules; with a real Prometheus, where it is installed (or PROMETHEUS names it)
	cargo build --workspace
	cargo test --workspace --test suite -- traces:: observability:: --include-ignored --nocapture

.PHONY: clients-test
clients-test: setup ## Other servers' Python clients from PyPI, in one process and as services; docs/dialects.md has a table of them
	@scripts/setup-clients.sh
	@tests/clients/dialects/figures.py
	cargo build --workspace
	cargo test --workspace --test suite dialect_clients:: -- --include-ignored --nocapture

.PHONY: contracts-test
contracts-test: setup-demo ## The suites of others: vLLM's tests of pooling models, openai-python's, TEI's and Infinity's documents; n of m for each dialect (ONLY=vllm, FILE=embed/test_online.py; UPDATE_DOCS=1 renews docs/dialects.md)
	@scripts/setup-contracts.sh
	@scripts/setup-schemathesis.sh
	cargo build --workspace
	python3 tests/contracts/contracts_test.py --binary target/debug/trireme $(if $(ONLY),--only $(ONLY)) $(if $(FILE),--file $(FILE))

.PHONY: contracts-quick
contracts-quick: setup-demo ## The part of contracts-test that takes two minutes: schemathesis with TEI's and Infinity's own documents
	@scripts/setup-schemathesis.sh
	cargo build --workspace
	@for suite in tei infinity; do python3 tests/contracts/contracts_test.py --binary target/debug/trireme --only $$suite; done

.PHONY: schema-test
schema-test: setup-demo ## schemathesis from PyPI against every route of /openapi.json: no answer outside the document, no 500 (SECONDS_EACH=60)
	@scripts/setup-schemathesis.sh
	cargo build --workspace
	python3 tests/schema/schema_test.py --binary target/debug/trireme --seconds $(or $(SECONDS_EACH),60)

.PHONY: compose-test
compose-test: setup ## Builds the images around the programs of target/debug, brings docker-compose.yml up, scales it, kills containers under load (needs docker; COMPILE=1: the programs that the Dockerfile compiles)
	cargo build --workspace
	"$(TRIREME_PYTHON)" tests/compose/compose_test.py

.PHONY: compose-test-compiled
compose-test-compiled:
	@$(MAKE) --no-print-directory compose-test COMPILE=1

.PHONY: console-test
console-test: setup-demo ## The console in a real browser (needs chromium; SCREENSHOT=1 renews docs/console.png with a release build)
	@if [[ -n "$(SCREENSHOT)" ]]; then $(MAKE) --no-print-directory build; else cargo build --workspace; fi
	@python3 tests/console/console_test.py --binary target/$(if $(SCREENSHOT),release,debug)/trireme $(if $(SCREENSHOT),--screenshot docs/console.png)

.PHONY: setup
setup: setup-demo ## Fetches the tests' requirements into .tools: ONNX Runtime, OpenVINO, nats-server, the demo's model, a Python environment
	@scripts/fetch-openvino.sh
	@scripts/fetch-nats-server.sh
	@scripts/setup-python.sh

.PHONY: setup-demo
setup-demo:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust with rustup"; exit 1; }
	@command -v python3 >/dev/null || { echo "python3 is missing: install it (Debian: apt-get install python3 python3-pip python3-venv)"; exit 1; }
	@scripts/fetch-onnxruntime.sh
	@scripts/fetch-demo-model.sh

.PHONY: fuzz
fuzz: ## Changed inputs for everything that parses outside bytes, SECONDS for each parser (60)
	cargo run --release -p trireme-fuzz -- --seconds $(or $(SECONDS),60) $(TARGETS)

.PHONY: fuzz-http
fuzz-http: ## N changed HTTP requests and gRPC calls (10000 of each) for a gateway that runs: HTTP=host:port GRPC=host:port PID=its-process
	@$(TRIREME_PYTHON) scripts/fuzz-server.py --http $(or $(HTTP),127.0.0.1:8000) --grpc $(or $(GRPC),127.0.0.1:8001) --count $(or $(N),10000) $(addprefix --pid ,$(PID)) $(addprefix --log ,$(LOG))

.PHONY: siege
siege: setup ## Silent, slow, huge and many hostile clients over HTTP and gRPC, and their effect on honest clients (SECONDS=10 ATTACK=slow SERVICES=1; PROFILE=dev: the debug build)
	cargo build --workspace --profile $(or $(PROFILE),release)
	target/$(if $(filter dev,$(PROFILE)),debug,$(or $(PROFILE),release))/siege --seconds $(or $(SECONDS),10) $(if $(ATTACK),--attack $(ATTACK)) $(if $(SERVICES),--services)

.PHONY: clean
clean: ## Removes built and fetched files
	cargo clean
	rm -rf "$(TOOLS)"
