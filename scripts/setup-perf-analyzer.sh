#!/usr/bin/env bash
# Puts NVIDIA's perf_analyzer, which `make perf-analyzer` runs against Trireme, into .tools/perf-analyzer.
#
# Its wheel contains a program that needs the C library of Debian 13. If this machine's is older, Debian 13 is unpacked
# beside it (debootstrap) and the program uses its libraries. Only unpacking needs root.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=2.60.0
SHA256=23ef56b107ae9233e5cf09fbdf508dd9b936a52f1bae2f63f53c8117087b3f25
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
TARGET=$TOOLS/perf-analyzer
DEBIAN=$TARGET/debian-13
PROGRAM=$TARGET/perf_analyzer
BINARY=$TARGET/bin/perf_analyzer

[[ $(machine) == x86_64 ]] || fail "perf-analyzer $VERSION is prebuilt for x86_64 only"

usable() { "$PROGRAM" --version >/dev/null 2>&1; }

# Debian 13 in $DEBIAN, complete or not at all: it is made under another name and then moved.
unpack_debian() {
    [[ $(id -u) == 0 ]] || fail "perf_analyzer needs glibc 2.38, this machine has an older one, and making a Debian 13 for it needs root: run scripts/setup-perf-analyzer.sh as root once"
    command -v debootstrap >/dev/null || fail "debootstrap is missing: install it (Debian: apt-get install debootstrap)"
    say "unpacking Debian 13 for perf_analyzer (about a minute, 200 MB)"
    debootstrap --variant=minbase trixie "$SCRATCH/debian" "$MIRROR" >"$SCRATCH/debootstrap.log" || {
        tail -n 5 "$SCRATCH/debootstrap.log" >&2
        fail "debootstrap failed with $MIRROR: check the network, or name another mirror with DEBIAN_MIRROR"
    }
    rm -rf "$SCRATCH"/debian/usr/share/{doc,man,info,locale} "$SCRATCH"/debian/var/{cache/apt,lib/apt/lists}/* "$DEBIAN"
    mv "$SCRATCH/debian" "$DEBIAN"
}

if usable; then
    say "perf_analyzer is there: ${PROGRAM#"$ROOT"/}"
    exit 0
fi

scratch
if [[ ! -x $BINARY ]]; then
    say "fetching perf-analyzer $VERSION (about 8 MB)"
    fetch_wheel "perf-analyzer==$VERSION" "$SHA256" perf_analyzer/bin/perf_analyzer
    chmod +x "$SCRATCH/perf_analyzer/bin/perf_analyzer"
    install_file "$SCRATCH/perf_analyzer/bin/perf_analyzer" "$BINARY"
fi

# The folder may be moved, so the start script finds its parts relative to itself.
{
    printf '#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd -P)\n'
    if "$BINARY" --version >/dev/null 2>&1; then
        echo 'exec "$here/bin/perf_analyzer" "$@"'
    else
        [[ -d $DEBIAN ]] || unpack_debian >&2
        echo 'libraries=$here/debian-13/usr/lib/x86_64-linux-gnu'
        echo 'exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$here/bin/perf_analyzer" "$@"'
    fi
} >"$SCRATCH/perf_analyzer.sh"
install_file "$SCRATCH/perf_analyzer.sh" "$PROGRAM"
chmod +x "$PROGRAM"
usable || fail "$PROGRAM does not run: remove $TARGET and run this again"
say "perf_analyzer $VERSION: ${PROGRAM#"$ROOT"/}"
