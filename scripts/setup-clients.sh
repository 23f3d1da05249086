#!/usr/bin/env bash
# Makes the three Python environments with the clients of other servers that `make clients-test` runs: .cache/clients-python of
# tests/clients/dialects/requirements.txt, .cache/integrations-python of integrations.txt, which needs older versions of the same
# packages, and .cache/others-python of others.txt, which has LiteLLM, libraries built on it, and further clients.
#
# With --lock: writes the files again, from the versions that requirements.in, integrations.in and others.in name.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

FOLDER=$ROOT/tests/clients/dialects

# lock ENVIRONMENT NAME: writes NAME.txt, with the hashes of all packages that the versions in NAME.in need.
lock() {
    local python=$1/bin/python requirements=$FOLDER/$2.txt
    [[ -x $python ]] || empty_environment "$1"
    scratch
    "$python" -m pip install --quiet --dry-run --ignore-installed --only-binary :all: \
        --report "$SCRATCH/report.json" --requirement "$FOLDER/$2.in"
    "$python" - "$SCRATCH/report.json" >"$requirements" <<'PYTHON'
import json
import sys

print("# Made by scripts/setup-clients.sh --lock for CPython 3.11 on x86_64 Linux.")
for package in sorted(json.load(open(sys.argv[1]))["install"], key=lambda package: package["metadata"]["name"].lower()):
    metadata, hashes = package["metadata"], package["download_info"]["archive_info"]["hashes"]
    print(f"{metadata['name'].lower()}=={metadata['version']} --hash=sha256:{hashes['sha256']}")
PYTHON
    say "written: ${requirements#"$ROOT"/}"
}

# make_ready ENVIRONMENT NAME: installs the packages of NAME.txt, unless they are there.
make_ready() {
    local python=$1/bin/python requirements=$FOLDER/$2.txt hashes=--require-hashes
    if cmp --silent "$requirements" "$1/requirements.txt"; then
        say "the clients are there: ${1#"$ROOT"/}"
        return
    fi
    empty_environment "$1"
    say "fetching the clients of ${requirements#"$ROOT"/} (120 to 250 MB)"
    # Hashes are those of wheels for one Python on one machine; others get the same versions.
    if [[ $("$python" -c 'import platform, sys; print(sys.version_info[:2] == (3, 11) and platform.machine())') != x86_64 ]]; then
        scratch
        sed 's/ --hash=.*//' "$requirements" >"$SCRATCH/requirements.txt"
        requirements=$SCRATCH/requirements.txt hashes=
    fi
    "$python" -m pip install --quiet --disable-pip-version-check $hashes --requirement "$requirements" ||
        fail "the clients could not be installed: check the network, or name a mirror with PIP_INDEX_URL"
    cp "$FOLDER/$2.txt" "$1/requirements.txt"
    say "the clients: ${1#"$ROOT"/}"
}

step=make_ready
[[ ${1:-} == --lock ]] && step=lock
"$step" "$ROOT/.cache/clients-python" requirements
"$step" "$ROOT/.cache/integrations-python" integrations
"$step" "$ROOT/.cache/others-python" others
