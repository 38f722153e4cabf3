#!/usr/bin/env bash
# Pin the base images of the Dockerfiles and the chart's etcd to the current digests of their tags. Needs a registry,
# and docker with buildx, crane or skopeo. Changes nothing unless every digest was found; exits with 3 if one was not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

digest_of() { # image without a digest
  if command -v crane >/dev/null; then
    crane digest "$1"
  elif command -v skopeo >/dev/null; then
    skopeo inspect --format '{{.Digest}}' "docker://$1"
  elif docker buildx version >/dev/null 2>&1; then
    docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'
  else
    echo "install crane, skopeo or docker with buildx" >&2 && return 1
  fi
}

named() { # the images, without digests
  sed -n 's/^ARG [A-Z_]*_IMAGE=\([^$@][^@]*\).*/\1/p' images/*/Dockerfile
  sed -n '/^etcd:/,/^[a-z]/s/^  image: \([^@]*\).*/\1/p' charts/quire/values.yaml
}

edits=()
while read -r image; do
  if ! digest=$(digest_of "${image}") || ! [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
    echo "pin_bases: no digest of $image; nothing is changed. Run this where its registry is reachable" >&2
    exit 3
  fi
  echo "$image@$digest"
  edits+=(-e "s#^\(ARG [A-Z_]*_IMAGE=\|  image: \)${image//./\\.}\(@sha256:[0-9a-f]*\)\?\$#\1$image@$digest#")
done < <(named | sort -u)
[ ${#edits[@]} -gt 0 ] || { echo "pin_bases: the Dockerfiles and the chart name no image" >&2 && exit 1; }
sed -i "${edits[@]}" images/*/Dockerfile charts/quire/values.yaml
