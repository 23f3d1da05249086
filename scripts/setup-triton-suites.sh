#!/usr/bin/env bash
# Makes what `make triton-suites` runs: .tools/triton-suites-python, and the sources of Triton's server and python backend, unless
# TRITON_SERVER_SOURCE and TRITON_BACKEND_SOURCE name checkouts.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

SERVER_TAG=v2.71.0 BACKEND_TAG=r26.07

# clone REPOSITORY TAG FOLDER NAME: the files of a tag, unless FOLDER has them; NAME is the variable that names another checkout.
clone() {
    local url=https://github.com/triton-inference-server/$1 tag=$2 target=$TOOLS/$3 name=$4
    if [[ -n ${!name:-} ]]; then
        say "$name: ${!name}"
        return
    fi
    if [[ $(cat "$target/.tag" 2>/dev/null) == "$tag" ]]; then
        say "there: ${target#"$ROOT"/}"
        return
    fi
    say "cloning $url at $tag"
    rm -rf "$target"
    git clone --quiet --depth 1 --branch "$tag" "$url" "$target" ||
        fail "$url cannot be cloned: see git's message above; or clone it elsewhere (git clone --branch $tag $url) and name the folder with $name"
    echo "$tag" >"$target/.tag"
}

clone server "$SERVER_TAG" triton-server TRITON_SERVER_SOURCE
clone python_backend "$BACKEND_TAG" triton-python-backend TRITON_BACKEND_SOURCE
environment "$TOOLS/triton-suites-python" "$ROOT/tests/triton-suites/requirements.txt" "5 GB: torch comes with its libraries for GPUs" ||
    fail "cannot install tests/triton-suites/requirements.txt: see pip's message above; check the network and pip's configuration, then run this again"
