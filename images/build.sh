#!/usr/bin/env bash
# Build the images, each tagged with the version of its distribution: images/build.sh [bookie broker operator jobs e2e etcd].
#
# With an ordinary docker the Dockerfiles name their usual base images. Where scripts/k8s/dockerd.sh started the docker, which
# reaches no registry, the base images are made from packages (scripts/k8s/python_base.sh) and buildah does the building.
# PYTHON_IMAGE and BUILD_IMAGE in the environment name other base images. `e2e` and `etcd` are for the tests in tests/e2e.
# `--names` as first argument builds nothing and prints what the images are called.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ordinary_bases=()
for name in PYTHON_IMAGE BUILD_IMAGE; do
  [ -z "${!name:-}" ] || ordinary_bases+=(--build-arg "$name=${!name}")
done
. scripts/k8s/env.sh
names_only=
if [ "${1:-}" = --names ]; then names_only=1 && shift; fi
[ $# -gt 0 ] || set -- bookie broker operator

version_of() { # distribution
  sed -n 's/^version = "\(.*\)"/\1/p' "$1/pyproject.toml"
}

name_of() { # image
  case $1 in
    bookie | broker | operator | jobs) echo "quire-$1:$(version_of "$1")" ;;
    e2e) echo quire-e2e:1 ;;
    etcd) echo "quire-e2e-etcd:$ETCD_VERSION" ;;
    *) log "no such image: $1" && exit 2 ;;
  esac
}

if [ -n "$names_only" ]; then
  for image in "$@"; do name_of "$image"; done
  exit 0
fi
docker info >/dev/null 2>&1 || skip "no docker answers: start it, or scripts/k8s/up.sh"

without_registry() { [ -f "$QUIRE_K8S_CACHE/run/dockerd.pid" ]; }

build() { # tag, Dockerfile, more options
  local tag=$1 file=$2
  shift 2
  local start=$SECONDS
  if without_registry; then
    scripts/k8s/python_base.sh
    scripts/k8s/build_image.sh "$tag" . -f "$file" --build-arg "PYTHON_IMAGE=docker-daemon:$PYTHON_IMAGE" \
      --build-arg "BUILD_IMAGE=docker-daemon:$BUILD_IMAGE" "$@"
  else
    docker build --quiet -f "$file" "${ordinary_bases[@]}" "$@" -t "$tag" . >/dev/null
  fi
  log "$tag: $(docker image inspect -f '{{.Size}}' "$tag" | numfmt --to=iec), $((SECONDS - start)) s"
}

for image in "$@"; do
  name=$(name_of "$image")
  case $image in
    e2e) build "$name" tests/e2e/image/Dockerfile ;;
    etcd)
      docker image inspect "$name" >/dev/null 2>&1 && continue
      scripts/k8s/build.sh etcd
      folder=$(mktemp -d)
      cp "$K8S_BIN/etcd" "$folder/etcd"
      printf 'FROM scratch\nCOPY etcd /usr/local/bin/etcd\nENTRYPOINT ["/usr/local/bin/etcd"]\n' >"$folder/Dockerfile"
      DOCKER_BUILDKIT=0 docker build --quiet -t "$name" "$folder" >/dev/null 2>&1
      rm -r "$folder"
      ;;
    *) build "$name" "images/$image/Dockerfile" --build-arg "VERSION=$(version_of "$image")" ;;
  esac
done
