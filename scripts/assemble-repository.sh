#!/usr/bin/env bash
# Makes a model repository: assemble-repository.sh MODEL_DIR REPOSITORY (configurations from examples/demo, files from MODEL_DIR).
#
# MODEL_DIR contains model.onnx, tokenizer.json and tokenizer_config.json of a sentence encoder with 384 dimensions.
# Files are hard links if the file system allows, otherwise copies, so the repository does not depend on MODEL_DIR.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $# == 2 ]] || fail "usage: assemble-repository.sh MODEL_DIR REPOSITORY"
MODEL=$1 REPOSITORY=$2
for file in model.onnx tokenizer.json tokenizer_config.json; do
    [[ -f $MODEL/$file ]] || fail "$MODEL/$file is missing: the model's folder holds model.onnx, tokenizer.json and tokenizer_config.json"
done

link() {
    ln -fL "$1" "$2" 2>/dev/null || { rm -f "$2" && cp "$1" "$2"; }
}

mkdir -p "$REPOSITORY"
cp -R "$ROOT/examples/demo/." "$REPOSITORY/"
link "$MODEL/tokenizer.json" "$REPOSITORY/tokenizer/1/tokenizer.json"
link "$MODEL/tokenizer_config.json" "$REPOSITORY/tokenizer/1/tokenizer_config.json"
link "$MODEL/model.onnx" "$REPOSITORY/minilm/1/model.onnx"
# The weights of a graph that has them in a file of their own.
if [[ -f $MODEL/model.onnx_data ]]; then
    link "$MODEL/model.onnx_data" "$REPOSITORY/minilm/1/model.onnx_data"
fi
