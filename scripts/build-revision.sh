#!/usr/bin/env bash
# build-revision.sh REVISION: builds the release programs of a git revision that `make bench-quick` compares with, in a work tree and
# a target folder of their own under .cache. Prints the folder of the programs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $# == 1 ]] || fail "which revision? build-revision.sh origin/main"
commit=$(git -C "$ROOT" rev-parse --verify --quiet "$1^{commit}") || fail "git knows no revision '$1'"
tree=$ROOT/.cache/revision target=$ROOT/.cache/revision-target

if [[ -d $tree ]]; then
    git -C "$tree" checkout --quiet --force --detach "$commit"
else
    git -C "$ROOT" worktree prune
    git -C "$ROOT" worktree add --quiet --force --detach "$tree" "$commit"
fi
cd "$tree"
say "building the release programs of $1 (${commit:0:10}); the first build takes some minutes" >&2
CARGO_TARGET_DIR=$target cargo build --release -p trireme -p trireme-gateway -p trireme-tokenizer -p trireme-model -p trireme-postprocess >&2
echo "$target/release"
