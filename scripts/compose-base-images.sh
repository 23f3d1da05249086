#!/usr/bin/env bash
# Makes stand-ins for the base images of ours, on a machine that reaches no image registry. Existing images stay.
#
# Debian comes from its packages (debootstrap), the Rust toolchain and the fetched crates from this machine, the NATS
# server from its wheel. The Dockerfile and the compose file are unchanged: only the names of the images differ.
#
#     compose-base-images.sh PREFIX    makes images PREFIX/…, and prints the variables that name them to docker-compose.yml
#
# Exit code 69 (EX_UNAVAILABLE): this machine lacks a requirement, which the message names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $# == 1 ]] || fail "usage: compose-base-images.sh PREFIX"
PREFIX=$1
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

have() { docker image inspect "$1" >/dev/null 2>&1; }

unavailable() {
    printf '%s\n' "$*" >&2
    exit 69
}

# logged WHAT COMMAND...: runs the command quietly; if it fails, shows the end of its output.
logged() {
    local what=$1
    shift
    "$@" >"$SCRATCH/$what.log" 2>&1 || {
        tail -n 8 "$SCRATCH/$what.log" >&2
        unavailable "$what failed"
    }
}

# Debian's base system in $SCRATCH/debian, from which the other images are made.
unpack_debian() {
    [[ $(id -u) == 0 ]] || unavailable "stand-ins for base images are made as root (debootstrap)"
    command -v debootstrap >/dev/null || unavailable "debootstrap is missing: install it (Debian: apt-get install debootstrap)"
    logged debootstrap debootstrap --variant=minbase bookworm "$SCRATCH/debian" "$MIRROR"
    # The slim image leaves these out as well.
    rm -rf "$SCRATCH"/debian/usr/share/{doc,man,info,locale}/* "$SCRATCH"/debian/var/{cache/apt,lib/apt/lists}/*
}

# import FOLDER NAME [CHANGE...]: an image of a folder.
import() {
    local folder=$1 name=$2 changes=()
    shift 2
    for change in "$@"; do
        changes+=(--change "$change")
    done
    tar --directory "$folder" --create . | docker import "${changes[@]}" - "$name" >/dev/null
}

# The build image: a C compiler, Python with pip, this machine's Rust and its certificates, so that pip and cargo work
# in the same network environment as this machine.
import_tools() {
    local root=$SCRATCH/tools sysroot cargo_home=${CARGO_HOME:-$HOME/.cargo}
    cp -a "$SCRATCH/debian" "$root"
    logged apt-get-update chroot "$root" apt-get --option Acquire::Retries=3 update --quiet
    logged apt-get-install env DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get --option Acquire::Retries=3 \
        --option Dpkg::Options::=--force-unsafe-io install --quiet --yes --no-install-recommends \
        gcc libc6-dev python3 python3-pip ca-certificates busybox
    rm -rf "$root"/var/{cache/apt,lib/apt/lists}/*
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    sysroot=$(rustc --print sysroot)
    tar --directory "$sysroot" --create --exclude='*.so.llvm-bitcode' --exclude='bin/*clippy*' --exclude='bin/*rust-analyzer*' \
        --exclude='bin/*miri*' --exclude='bin/rustdoc' --exclude='lib/rustlib/src' bin lib | tar --directory "$root/usr/local" --extract
    mkdir -p "$root/usr/local/cargo/registry"
    for folder in cache index; do
        cp -R "$cargo_home/registry/$folder" "$root/usr/local/cargo/registry/" 2>/dev/null || true
    done
    import "$root" "$1" "ENV CARGO_HOME=/usr/local/cargo" "ENV CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt" \
        "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"
}

# Like the official image: the same folders, and busybox for a health check.
import_nats() {
    local root=$SCRATCH/nats
    cp -a "$SCRATCH/debian" "$root"
    cp "$TOOLS/nats-server/nats-server" "$root/usr/local/bin/"
    cp "$SCRATCH/tools/bin/busybox" "$root/usr/local/bin/wget"
    import "$root" "$1" 'ENTRYPOINT ["nats-server"]' 'CMD ["--config", "/etc/nats/nats-server.conf"]'
}

# A newer toolchain makes a new image.
rust=$PREFIX/rust:$(rustc --version | cut -d ' ' -f 2)

if ! have "$PREFIX/debian" || ! have "$rust" || ! have "$PREFIX/nats"; then
    scratch
    "$ROOT/scripts/fetch-nats-server.sh" >&2
    unpack_debian
    import "$SCRATCH/debian" "$PREFIX/debian" &
    import_tools "$rust"
    import_nats "$PREFIX/nats"
    wait $!
fi

cat <<VARIABLES
RUNTIME_IMAGE=$PREFIX/debian
RUST_IMAGE=$rust
PYTHON_IMAGE=$rust
NATS_IMAGE=$PREFIX/nats
VARIABLES
