#!/usr/bin/env bash
# Build the images, each tagged with the version of its distribution: images/build.sh [bookie broker operator jobs e2e etcd s3
# prometheus metrics-server].
#
# With an ordinary docker, the Dockerfiles use their usual base images. A docker started by scripts/k8s/dockerd.sh
# cannot reach a registry: base images are then built from packages (scripts/k8s/python_base.sh), and buildah builds the
# images.
# The environment variables PYTHON_IMAGE, BUILD_IMAGE and, for jobs, JAVA_IMAGE and MAVEN_IMAGE select other base
# images. `e2e`, `etcd`, `s3`, `prometheus` and `metrics-server` are for the tests in tests/e2e.
# `--names` as first argument only prints the names of the images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ordinary_bases=()
for name in PYTHON_IMAGE BUILD_IMAGE JAVA_IMAGE MAVEN_IMAGE; do
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
    s3) echo "quire-e2e-s3:$VERSITYGW_VERSION" ;;
    prometheus) echo "quire-e2e-prometheus:$PROMETHEUS_VERSION" ;;
    metrics-server) echo "quire-e2e-metrics-server:$METRICS_SERVER_VERSION" ;;
    *) log "no such image: $1" && exit 2 ;;
  esac
}

if [ -n "$names_only" ]; then
  for image in "$@"; do name_of "$image"; done
  exit 0
fi
docker info >/dev/null 2>&1 || skip "docker does not respond: start it, or run scripts/k8s/up.sh"

without_registry() { [ -f "$QUIRE_K8S_CACHE/run/dockerd.pid" ]; }

inputs_of() { # Dockerfile, options: a digest of everything that the image is made from
  local file=$1 sources
  shift
  sources=$(sed -n 's/^COPY \([^-].*\) [^ ]*$/\1/p' "$file")
  {
    echo "$*"
    docker image inspect -f '{{.Id}}' "$PYTHON_IMAGE" "$BUILD_IMAGE"
    find "$file" $sources -type f -not -path '*/__pycache__/*' -not -path '*/target/*' -print0 | sort -z | xargs -0 sha256sum
  } | sha256sum
}

build() { # tag, Dockerfile, more options
  local tag=$1 file=$2
  shift 2
  local start=$SECONDS
  if without_registry; then
    scripts/k8s/python_base.sh "$image"
    # buildah keeps layers too, but needs half a minute an image to find that all of them are there.
    local note="$QUIRE_K8S_CACHE/run/built-${tag//[:\/]/_}" inputs
    inputs=$(inputs_of "$file" "$@")
    if [ "$(cat "$note" 2>/dev/null)" = "$inputs $(docker image inspect -f '{{.Id}}' "$tag" 2>/dev/null)" ]; then return; fi
    scripts/k8s/build_image.sh "$tag" . -f "$file" --build-arg "PYTHON_IMAGE=docker-daemon:$PYTHON_IMAGE" \
      --build-arg "BUILD_IMAGE=docker-daemon:$BUILD_IMAGE" "$@"
    echo "$inputs $(docker image inspect -f '{{.Id}}' "$tag")" >"$note"
  else
    docker build --quiet -f "$file" "${ordinary_bases[@]}" "$@" -t "$tag" . >/dev/null
  fi
  log "$tag: $(docker image inspect -f '{{.Size}}' "$tag" | numfmt --to=iec), $((SECONDS - start)) s"
}

from_binaries() { # tag, the program that it runs, other programs
  local tag=$1 folder programs digest
  shift
  digest=$(sha256sum "$@" | sha256sum | cut -c1-16)
  [ "$(docker image inspect -f '{{.Config.Labels.binaries}}' "$tag" 2>/dev/null)" != "$digest" ] || return 0
  folder=$(mktemp -d)
  cp "$@" "$folder"
  programs=("${@##*/}")
  printf 'FROM scratch\nLABEL binaries=%s\nCOPY %s /usr/local/bin/\nENTRYPOINT ["/usr/local/bin/%s"]\n' \
    "$digest" "${programs[*]}" "${programs[0]}" >"$folder/Dockerfile"
  DOCKER_BUILDKIT=0 docker build --quiet -t "$tag" "$folder" >/dev/null 2>&1
  rm -r "$folder"
}

for image in "$@"; do
  name=$(name_of "$image")
  case $image in
    e2e) build "$name" tests/e2e/image/Dockerfile ;;
    etcd)
      scripts/k8s/build.sh etcd etcdctl
      from_binaries "$name" "$K8S_BIN/etcd" "$K8S_BIN/etcdctl"
      ;;
    prometheus | metrics-server)
      scripts/k8s/build.sh "$image"
      from_binaries "$name" "$K8S_BIN/$image"
      ;;
    s3) from_binaries "$name" "$(scripts/s3/build.sh)" ;;
    jobs)
      bases=()
      if without_registry; then
        bases=(--build-arg "JAVA_IMAGE=docker-daemon:$JAVA_IMAGE" --build-arg "MAVEN_IMAGE=docker-daemon:$MAVEN_IMAGE")
      fi
      build "$name" images/jobs/Dockerfile --build-arg "VERSION=$(version_of jobs)" "${bases[@]}"
      ;;
    *) build "$name" "images/$image/Dockerfile" --build-arg "VERSION=$(version_of "$image")" ;;
  esac
done
