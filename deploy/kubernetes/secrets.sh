#!/bin/sh
# Prints Secrets with a new password for each user of NATS: deploy/kubernetes/secrets.sh | kubectl apply -f -
# Applied again it changes all passwords: restart the broker and the services after that.
set -eu

namespace=${1:-trireme}

secret() {
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData:\n' "$1" "$namespace"
}

passwords=
for user in gateway tokenizer model postprocess admin; do
    password=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    secret "trireme-nats-$user"
    printf '  password: "%s"\n' "$password"
    passwords="$passwords    $(echo "$user" | tr '[:lower:]' '[:upper:]')_PASSWORD: \"$password\"
"
done
secret trireme-nats-passwords
printf '  passwords.conf: |\n%s' "$passwords"
