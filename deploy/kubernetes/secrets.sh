#!/bin/sh
# Prints Secrets with a new password for each user of NATS: deploy/kubernetes/secrets.sh | kubectl apply -f -
# Applying it again changes all passwords: restart the brokers and the services after that. Restart a cluster of brokers
# (deploy/kubernetes/cluster) as a whole, because brokers with different passwords cannot connect to each other.
set -eu

namespace=${1:-trireme}

secret() {
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData:\n' "$1" "$namespace"
}

new_password() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

passwords=
for user in gateway tokenizer model postprocess python admin; do
    password=$(new_password)
    secret "trireme-nats-$user"
    printf '  password: "%s"\n' "$password"
    passwords="$passwords    $(echo "$user" | tr '[:lower:]' '[:upper:]')_PASSWORD: \"$password\"
"
done

# Passwords for the connections between brokers of a cluster; a single broker does not read them.
route=$(new_password)
system=$(new_password)
secret trireme-nats-system
printf '  password: "%s"\n' "$system"

secret trireme-nats-passwords
printf '  passwords.conf: |\n%s' "$passwords"
printf '  routes.conf: |\n    ROUTE_PASSWORD: "%s"\n    SYSTEM_PASSWORD: "%s"\n    ROUTES: [\n' "$route" "$system"
for number in 0 1 2; do
    printf '        "nats://route:%s@nats-%s.nats:6222"\n' "$route" "$number"
done
printf '    ]\n'
