#!/usr/bin/env bash
# Packs what a machine with an NVIDIA GPU needs to measure Trireme and to run its GPU tests, for a machine that can fetch nothing: release
# programs, the CUDA build of ONNX Runtime, the demo's model, a graph whose random weights are made there, and the benchmark. Parts of
# at most PART_BYTES (60 MB) and gpu-kit.py lie in target/gpu-kit afterwards. There: python3 gpu-kit.py [RESULT.json]
# PROFILE=dev packs debug programs, to try the kit. MODEL=DIR packs that model.onnx with its tokenizer in place of the demo's, whose weights
# have 8 bits: all-MiniLM-L6-v2 with fp32, for example.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE=${PROFILE:-release} MODEL=${MODEL:-} LEVEL=${LEVEL:-6}
PYTHON_VERSION=3.12 PART_BYTES=${PART_BYTES:-60000000}
TARGET=$ROOT/target/gpu-kit
# As bench/requirements-gpu.txt says; CUDA's own libraries are those of the other machine.
ONNXRUNTIME=onnxruntime-gpu==1.31.1 TOKENIZERS=tokenizers==0.23.3
PROGRAMS=(trireme trireme-gateway trireme-tokenizer trireme-model trireme-postprocess)

[[ $(machine) == x86_64 ]] || fail "the CUDA build of ONNX Runtime is published for x86_64 only"
for program in xz split strip; do
    command -v "$program" >/dev/null || fail "there is no $program: install it (Debian: apt-get install xz-utils coreutils binutils)"
done
"$ROOT/scripts/fetch-demo-model.sh"
"$ROOT/scripts/fetch-nats-server.sh"
"$ROOT/scripts/setup-bench.sh"
"$ROOT/scripts/setup-bench-texts.sh"
scratch
kit=$SCRATCH/kit
mkdir -p "$kit/target/programs" "$kit/.tools/demo-model" "$kit/.tools/nats-server" "$kit/.tools/bench-texts" "$kit/site" \
    "$kit/services/model" "$kit/tests/repositories/basic" "$kit/bench"

say "building the programs and the GPU tests (profile $PROFILE)"
packages=()
for program in "${PROGRAMS[@]}"; do packages+=(--package "$program"); done
cd "$ROOT" || exit
cargo build --profile "$PROFILE" "${packages[@]}"
folder=$ROOT/target/${PROFILE/#dev/debug}
tests=$(cargo test --profile "$PROFILE" --package trireme-model --lib --no-run --message-format json |
    python3 -c 'import json, sys; found = [json.loads(line).get("executable") for line in sys.stdin]; print(*filter(None, found))')
[[ -x $tests ]] || fail "cargo built no test program of trireme-model, but: $tests"
for program in "${PROGRAMS[@]}"; do strip -o "$kit/target/programs/$program" "$folder/$program"; done
strip -o "$kit/target/programs/gpu-tests" "$tests"

say "fetching $ONNXRUNTIME and $TOKENIZERS for Python $PYTHON_VERSION (about 260 MB, kept in target/gpu-kit-wheels)"
wheels=$ROOT/target/gpu-kit-wheels quiet=()
[[ -t 1 ]] || quiet=(--quiet)
python3 -m pip download "${quiet[@]}" --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$PYTHON_VERSION" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_17_x86_64 --dest "$wheels" "$ONNXRUNTIME" "$TOKENIZERS" ||
    fail "cannot fetch the wheels: see pip's message above; check the network and pip's configuration, then run this again"
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$kit/site"; done

say "putting the kit together"
for file in model.onnx tokenizer.json tokenizer_config.json; do
    cp "${MODEL:-$TOOLS/demo-model}/$file" "$kit/.tools/demo-model/" || fail "the model's folder holds model.onnx, tokenizer.json and tokenizer_config.json"
done
cp "$TOOLS/nats-server/nats-server" "$kit/.tools/nats-server/"
cp "$TOOLS"/bench-texts/mixed-report.txt "$kit/.tools/bench-texts/"
cp bench/*.py "$kit/bench/"
cp -R examples scripts "$kit/"
cp -R tests/repositories/basic/tiny_encoder "$kit/tests/repositories/basic/"
"$TOOLS/bench-python/bin/python" -B bench/random_encoder.py "$kit/random"
for precision in fp32 fp16; do cp "$TOOLS"/demo-model/tokenizer*.json "$kit/random/$precision/"; done

rm -rf "$TARGET"
mkdir -p "$TARGET"
tar --create --directory "$SCRATCH" kit | xz -"$LEVEL" --threads=0 | split --bytes="$PART_BYTES" --numeric-suffixes - "$TARGET/gpu-kit.tar.xz."
cp bench/gpu_kit.py "$TARGET/gpu-kit.py"
(cd "$TARGET" && sha256sum gpu-kit.tar.xz.* >gpu-kit.sha256)
revision=$(git -C "$ROOT" describe --always --dirty 2>/dev/null || echo unknown)
printf '{"profile": "%s", "revision": "%s"}\n' "$PROFILE" "$revision" >"$TARGET/gpu-kit.json"
say "the kit is ${TARGET#"$ROOT"/}: $(find "$TARGET" -name '*.xz.*' | wc -l) parts, $(du -sh "$TARGET" | cut -f1). On the machine with the GPU: python3 gpu-kit.py RESULT.json"
