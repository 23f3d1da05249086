#!/bin/sh
# Prepares a deployment by docker compose: a password for each user of NATS, and the demo's model repository. It runs
# in its own container at every start, and leaves existing files as they are.
set -eu

# In a test, this folder takes the place of /.
root=${SETUP_ROOT:-}

# password FILE: writes a password to the file, unless there is one already.
password() {
    if [ ! -s "$1" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1.part"
        mv "$1.part" "$1"
    fi
}

# Each password is in its own volume, which only its service mounts. The broker's volume has all of them.
for user in gateway tokenizer model postprocess python admin; do
    file=$root/secrets/$user/password
    password "$file"
    name=$(echo "$user" | tr '[:lower:]' '[:upper:]')
    echo "${name}_PASSWORD: \"$(cat "$file")\""
done >"$root/secrets/nats/passwords.conf.part"
mv "$root/secrets/nats/passwords.conf.part" "$root/secrets/nats/passwords.conf"

# Passwords for the connections between brokers of a cluster (docker-compose.cluster.yml); a single broker does not
# read them.
for user in route system; do
    password "$root/secrets/nats/$user-password"
done
route=$(cat "$root/secrets/nats/route-password")
{
    echo "ROUTE_PASSWORD: \"$route\""
    echo "SYSTEM_PASSWORD: \"$(cat "$root/secrets/nats/system-password")\""
    echo "ROUTES: ["
    for broker in nats nats-2 nats-3; do
        echo "    \"nats://route:$route@$broker:6222\""
    done
    echo "]"
} >"$root/secrets/nats/routes.conf.part"
mv "$root/secrets/nats/routes.conf.part" "$root/secrets/nats/routes.conf"

# Brokers run without root rights, and only they mount these volumes. /data-1 to /data-3 are those of a cluster.
for folder in "$root"/data "$root"/data-*; do
    if [ -d "$folder" ]; then
        chmod 777 "$folder"
    fi
done

# Models that a worker may have open are never overwritten.
if [ ! -e "$root/models/.complete" ]; then
    cp -R "$root/demo/." "$root/models/"
    touch "$root/models/.complete"
fi
