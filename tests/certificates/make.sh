#!/usr/bin/env bash
# Creates the certificates of the TLS tests, for localhost and valid for a hundred years. Run it here and commit the
# files.
set -euo pipefail
cd "$(dirname "$0")"

issue() { # NAME EXTENSIONS
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "/CN=$1" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -out "$1.pem" -extfile <(echo "$2") 2>/dev/null
    rm "$1.csr"
}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 36500 \
    -subj "/CN=Trireme tests" -addext "basicConstraints=critical,CA:TRUE" 2>/dev/null
issue server "subjectAltName=DNS:localhost,IP:127.0.0.1"
issue client "extendedKeyUsage=clientAuth"
# Of X.509 version 1, which openssl makes where no extension is asked for.
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout version-1.key -out version-1.csr -subj "/CN=version-1" 2>/dev/null
openssl x509 -req -in version-1.csr -signkey version-1.key -days 36500 -out version-1.pem 2>/dev/null
rm version-1.csr
# No other certificate is to be issued with it.
rm ca.key ca.srl
