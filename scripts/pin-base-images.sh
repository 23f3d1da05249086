#!/usr/bin/env bash
# Prints a build argument for each base image of the Dockerfile: NAME=IMAGE:TAG@DIGEST. A release builds all of its images from these, so
# that those of both machines have the same bases, although a tag may be moved between two builds. `docker build --build-arg` takes each line.
#
#     pin-base-images.sh [DOCKERFILE]    needs docker with buildx, and the registry of the images
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DOCKERFILE=${1:-$ROOT/Dockerfile}
bases=$(sed -n 's/^ARG \([A-Z_]*_IMAGE\)=\(.*\)$/\1 \2/p' "$DOCKERFILE")
[[ -n $bases ]] || fail "$DOCKERFILE names no base image (ARG NAME_IMAGE=IMAGE:TAG)"
while read -r name image; do
    told=$(docker buildx imagetools inspect "$image") || fail "the registry does not tell the digest of '$image' ($name)"
    # The digest of the index, where the tag has images for several platforms.
    digest=$(awk '$1 == "Digest:" { print $2; exit }' <<<"$told")
    [[ $digest == sha256:* ]] || fail "the digest of '$image' ($name): found '$digest', expected 'sha256:…'"
    echo "$name=$image@$digest"
done <<<"$bases"
