#!/usr/bin/env bash
# Tests with curl against tests/repositories/basic, as for a user without a client library: `curl.sh http://HOST:PORT`.
# Prints one line for each check; exits with 1 at the first check that fails.
set -uo pipefail

URL=$1
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
JSON=application/json
INFER=$URL/v2/models/identity_fp32/infer
BYTES=$URL/v2/models/identity_bytes
# 1.5 and -2 in FP32, little endian.
FLOATS='\x00\x00\xc0\x3f\x00\x00\x00\xc0'
COUNT=0
touch "$WORK/head" "$WORK/body"

# ask ARGUMENTS...: puts the status into $STATUS, the head into $WORK/head (lower case, no carriage returns) and the
# body into $WORK/body.
ask() {
    : > "$WORK/body"
    STATUS=$(curl --silent --show-error --max-time 30 --dump-header "$WORK/raw" --output "$WORK/body" \
        --write-out '%{http_code}' "$@") || fail "curl ended with $?"
    tr -d '\r' < "$WORK/raw" | tr '[:upper:]' '[:lower:]' > "$WORK/head"
}

fail() {
    echo "FAILED $NAME: $1"
    sed 's/^/  /' "$WORK/head"
    head -c 2000 "$WORK/body"
    exit 1
}

begin() {
    NAME=$1
    COUNT=$((COUNT + 1))
}

ok() { echo "ok $NAME"; }
status() { [ "$STATUS" = "$1" ] || fail "expected status $1, found $STATUS"; }
header() { grep -qx "$1: $2" "$WORK/head" || fail "expected the header '$1: $2'"; }
body() { [ "$(cat "$WORK/body")" = "$1" ] || fail "expected the body $1"; }
contains() { grep -qF -- "$1" "$WORK/body" || fail "expected a body with $1"; }
# Checks that the bytes after the first $1 bytes, which are the JSON, are $2 in hex.
tensor() {
    local found
    found=$(tail -c +$(($1 + 1)) "$WORK/body" | od -An -tx1 | tr -d ' \n')
    [ "$found" = "$2" ] || fail "expected the bytes $2 after the JSON, found $found"
}

begin "health"
for path in live ready; do
    ask "$URL/v2/health/$path"
    status 200
    body ""
done
ask "$URL/v2/models/simple/ready"
status 200
ok

begin "metadata"
ask "$URL/v2"
status 200
header content-type $JSON
contains '"extensions":['
ask "$URL/v2/models/identity_fp32"
status 200
contains '{"name":"identity_fp32","versions":["1"]'
contains '"inputs":[{"name":"INPUT0","datatype":"FP32"'
ok

begin "configuration"
ask "$URL/v2/models/simple/config"
status 200
header content-type $JSON
contains '"max_batch_size":8'
ok

begin "repository index"
ask -X POST "$URL/v2/repository/index"
status 200
contains '{"name":"simple","version":"1","state":"READY"}'
ok

begin "JSON infer"
SHAPED='{"id":"7","inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["oar","r\u0151w"]}]}'
ask "$BYTES/infer" -d "$SHAPED"
status 200
header content-type $JSON
grep -q '^server-timing: identity_bytes;dur=' "$WORK/head" || fail "expected Server-Timing to name the model"
EXPECTED='{"id":"7","model_name":"identity_bytes","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[2],"data":["oar","rőw"]}]}'
body "$EXPECTED"
ok

begin "JSON in pieces"
ask "$BYTES/infer" -H 'Transfer-Encoding: chunked' -d "$SHAPED"
status 200
body "$EXPECTED"
ok

begin "binary infer"
HEAD='{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
printf '%s%b' "$HEAD" "$FLOATS" > "$WORK/request"
ask "$INFER" -H "Inference-Header-Content-Length: ${#HEAD}" --data-binary "@$WORK/request"
status 200
header content-type application/octet-stream
LENGTH=$(sed -n 's/^inference-header-content-length: //p' "$WORK/head")
[ -n "$LENGTH" ] || fail "expected the header inference-header-content-length"
contains '"parameters":{"binary_data_size":8}'
tensor "$LENGTH" 0000c03f000000c0
ok

begin "raw binary"
printf '%b' "$FLOATS" > "$WORK/request"
ask "$INFER" -H 'Inference-Header-Content-Length: 0' --data-binary "@$WORK/request"
status 200
LENGTH=$(sed -n 's/^inference-header-content-length: //p' "$WORK/head")
contains '"shape":[1,2]'
tensor "$LENGTH" 0000c03f000000c0
ok

begin "gzip both ways"
printf '%s' "$SHAPED" | gzip -c > "$WORK/request"
ask "$BYTES/infer" -H 'Content-Encoding: gzip' -H 'Accept-Encoding: gzip' --data-binary "@$WORK/request"
status 200
header content-encoding gzip
gzip -dc < "$WORK/body" > "$WORK/plain" || fail "expected the body to be gzip"
mv "$WORK/plain" "$WORK/body"
body "$EXPECTED"
ok

begin "decompressed by curl"
ask --compressed "$BYTES/infer" -d "$SHAPED"
status 200
body "$EXPECTED"
ok

begin "generate"
ask "$BYTES/generate" -d '{"INPUT0":"oar"}'
status 200
GENERATED='{"model_name":"identity_bytes","model_version":"1","OUTPUT0":"oar"}'
body "$GENERATED"
ok

begin "generate_stream"
ask --no-buffer "$BYTES/generate_stream" -d '{"INPUT0":"oar"}'
status 200
header content-type 'text/event-stream; charset=utf-8'
body "data: $GENERATED"
ok

begin "Expect: 100-continue"
ask "$BYTES/infer" -H 'Expect: 100-continue' --expect100-timeout 20 -d "$SHAPED"
status 200
[ "$(head -n 1 "$WORK/head")" = "http/1.1 100 continue" ] || fail "expected to be asked for the body first"
body "$EXPECTED"
ask "$URL/v2/models/none/infer" -H 'Expect: 100-continue' --expect100-timeout 20 -d "$SHAPED"
status 404
[ "$(head -n 1 "$WORK/head")" = "http/1.1 404 not found" ] || fail "expected a refusal in place of the go-ahead"
ok

begin "404"
ask "$URL/v2/no/such/path"
status 404
body '{"error":"Not Found"}'
ask "$URL/v2/models/none/infer" -d "$SHAPED"
status 404
body "{\"error\":\"Request for unknown model: 'none' is not found\"}"
ok

begin "405"
ask -X POST "$URL/v2/health/live"
status 405
ask "$BYTES/infer"
status 405
body '{"error":"Method Not Allowed"}'
ok

begin "errors of a request"
ask "$BYTES/infer" -d '{"inputs":'
status 500
contains 'failed to parse the request JSON buffer'
ask "$BYTES/infer" -d '{"inputs":[]}'
status 400
contains "expected 1 inputs but got 0 inputs for model 'identity_bytes'"
ok

echo "$COUNT checks passed"
