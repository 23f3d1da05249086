#!/bin/sh
# What a deployment by docker compose needs before anything else runs: a password for each user of NATS, and the demo's
# model repository. Run in a container of its own at every start; what is there already stays.
set -eu

# Each password in a volume of its own, which only that service mounts; all of them in the broker's.
for user in gateway tokenizer model postprocess admin; do
    file=/secrets/$user/password
    if [ ! -s "$file" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file.part"
        mv "$file.part" "$file"
    fi
    name=$(echo "$user" | tr '[:lower:]' '[:upper:]')
    echo "${name}_PASSWORD: \"$(cat "$file")\""
done >/secrets/nats/passwords.conf.part
mv /secrets/nats/passwords.conf.part /secrets/nats/passwords.conf

# The broker runs without rights, and nobody else has this volume.
chmod 777 /data

# Never over models that a worker may have open.
if [ ! -e /models/.complete ]; then
    cp -R /demo/. /models/
    touch /models/.complete
fi
