#!/usr/bin/env bash
# Build an image whose Dockerfile talks to package registries where the dockerd has no network: buildah runs the steps in a
# chroot with this machine's network and certificates, and hands the result to docker.
#   build_image.sh TAG CONTEXT [more options of buildah, e.g. -f FILE --build-arg KEY=VALUE]
# Local base images are named docker-daemon:NAME (through a build argument that FROM uses).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
tag=$1 context=$2
shift 2
builder=(buildah --storage-driver overlay --root "$QUIRE_K8S_CACHE/buildah-overlay" --runroot "$QUIRE_K8S_CACHE/run/buildah-overlay")
# Settings of pip for the steps alone: variables given to buildah would stay in the image.
mkdir -p "$QUIRE_K8S_CACHE/run"
pip_settings="$QUIRE_K8S_CACHE/run/pip.conf"
pass=(-v "$pip_settings:/etc/pip.conf:ro")
{
  echo "[global]"
  [ ! -f /etc/ssl/certs/ca-certificates.crt ] || echo "cert = /etc/ssl/certs/ca-certificates.crt"
  [ -z "${PIP_FIND_LINKS:-}" ] || echo "find-links = $PIP_FIND_LINKS"
  [ -z "${PIP_INDEX_URL:-}" ] || echo "index-url = $PIP_INDEX_URL"
  echo "timeout = ${PIP_DEFAULT_TIMEOUT:-180}"
} >"$pip_settings"
for folder in ${PIP_FIND_LINKS:-} /etc/ssl/certs /usr/local/share/ca-certificates; do
  [ ! -d "$folder" ] || pass+=(-v "$folder:$folder:ro")
done
"${builder[@]}" bud --quiet --format docker --isolation chroot --network host --layers "${pass[@]}" "$@" -t "$tag" "$context" >&2
"${builder[@]}" push -q "localhost/$tag" "docker-daemon:$tag" 2>/dev/null || "${builder[@]}" push -q "$tag" "docker-daemon:$tag"
