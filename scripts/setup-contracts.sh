#!/usr/bin/env bash
# Makes .cache/contracts-python, the Python environment of `make contracts-test`, and fetches the suites of others into .cache/contracts.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$ROOT/.cache/contracts-python
REQUIREMENTS=$ROOT/tests/contracts/requirements.txt

"$ROOT/scripts/setup-verify.sh"
if ! cmp --silent "$REQUIREMENTS" "$TARGET/requirements.txt"; then
    say "making ${TARGET#"$ROOT"/} (about 600 MB)"
    empty_environment "$TARGET"
    "$TARGET/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$REQUIREMENTS" ||
        fail "tests/contracts/requirements.txt could not be installed: check the network, or name a mirror with PIP_INDEX_URL"
    # torch, transformers and sentence-transformers are those of the other environment.
    "$TARGET/bin/python" - "$TOOLS/verify-python" <<'PYTHON'
import pathlib, site, sys

(packages,) = (pathlib.Path(sys.argv[1]) / "lib").glob("python3*/site-packages")
(pathlib.Path(site.getsitepackages()[0]) / "verify-python.pth").write_text(f"{packages}\n")
PYTHON
    cp "$REQUIREMENTS" "$TARGET/requirements.txt"
fi

# fetch PROJECT==VERSION SHA256 NAME: the Python files of a source distribution.
fetch() {
    local folder=$ROOT/.cache/contracts/$3
    [[ $(cat "$folder/version" 2>/dev/null) == "$1" ]] && return
    say "fetching the tests of $1"
    rm -rf "$folder"
    mkdir -p "$folder"
    python3 "$ROOT/tests/contracts/fetch.py" "$1" "$2" "$folder" || fail "$1 could not be fetched: check the network, or name a mirror with PIP_INDEX_URL"
    echo "$1" >"$folder/version"
}

fetch vllm==0.33.0 f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112 vllm
fetch openai==3.57.0 5a0a89d6a542efc85e2a8cec701ca9265b795d578c777828e10fafdf80e333b6 openai
