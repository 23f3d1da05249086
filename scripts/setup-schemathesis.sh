#!/usr/bin/env bash
# Makes .cache/schemathesis, the Python environment of `make schema-test`.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

VERSION=4.32.5
TARGET=$ROOT/.cache/schemathesis

if [[ -x $TARGET/bin/schemathesis && $(cat "$TARGET/version" 2>/dev/null) == "$VERSION" ]]; then
    exit 0
fi
empty_environment "$TARGET"
say "fetching schemathesis (about 20 MB)"
"$TARGET/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "schemathesis==$VERSION" ||
    fail "schemathesis could not be installed: check the network, or name a mirror with PIP_INDEX_URL"
echo "$VERSION" >"$TARGET/version"
