#!/usr/bin/env bash
# Makes .cache/clients-python, the Python environment with the clients of other servers that `make clients-test` runs.
#
# With --lock: writes tests/clients/dialects/requirements.txt again, from the versions that requirements.in names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$ROOT/.cache/clients-python
PYTHON=$TARGET/bin/python
FOLDER=$ROOT/tests/clients/dialects
REQUIREMENTS=$FOLDER/requirements.txt
STAMP=$TARGET/requirements.txt

make_environment() {
    rm -rf "$TARGET"
    mkdir -p "$(dirname "$TARGET")"
    python3 -m venv "$TARGET" >/dev/null || {
        rm -rf "$TARGET"
        fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    }
}

if [[ ${1:-} == --lock ]]; then
    [[ -x $PYTHON ]] || make_environment
    scratch
    "$PYTHON" -m pip install --quiet --dry-run --ignore-installed --only-binary :all: \
        --report "$SCRATCH/report.json" --requirement "$FOLDER/requirements.in"
    "$PYTHON" - "$SCRATCH/report.json" >"$REQUIREMENTS" <<'PYTHON'
import json
import sys

print("# Made by scripts/setup-clients.sh --lock for CPython 3.11 on x86_64 Linux.")
for package in sorted(json.load(open(sys.argv[1]))["install"], key=lambda package: package["metadata"]["name"].lower()):
    metadata, hashes = package["metadata"], package["download_info"]["archive_info"]["hashes"]
    print(f"{metadata['name'].lower()}=={metadata['version']} --hash=sha256:{hashes['sha256']}")
PYTHON
    say "written: ${REQUIREMENTS#"$ROOT"/}"
    exit 0
fi

if cmp --silent "$REQUIREMENTS" "$STAMP"; then
    say "the clients are there: ${TARGET#"$ROOT"/}"
    exit 0
fi

make_environment
say "fetching the clients (about 120 MB)"
hashes=--require-hashes
locked=$REQUIREMENTS
# Hashes are those of wheels for one Python on one machine; others get the same versions.
if [[ $("$PYTHON" -c 'import platform, sys; print(sys.version_info[:2] == (3, 11) and platform.machine())') != x86_64 ]]; then
    scratch
    locked=$SCRATCH/requirements.txt
    sed 's/ --hash=.*//' "$REQUIREMENTS" >"$locked"
    hashes=
fi
"$PYTHON" -m pip install --quiet --disable-pip-version-check $hashes --requirement "$locked" ||
    fail "the clients could not be installed: check the network, or name a mirror with PIP_INDEX_URL"
cp "$REQUIREMENTS" "$STAMP"
say "the clients: ${TARGET#"$ROOT"/}"
