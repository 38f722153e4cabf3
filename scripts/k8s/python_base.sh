#!/usr/bin/env bash
# Stand-ins for the base images that our Dockerfiles name (PYTHON_IMAGE, BUILD_IMAGE), made from Debian packages alone:
# python3 as in python:3.11-slim-bookworm, and the same with pip and Rust. For machines that reach no image registry.
# `python_base.sh jobs` makes those of images/jobs too: Python with Java, and Maven for its jars.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
folder="$QUIRE_K8S_CACHE/img"
mkdir -p "$folder"

make_base() { # tag, name of the archive, packages
  docker image inspect "$1" >/dev/null 2>&1 && return
  if [ ! -s "$folder/$2.tar" ]; then
    log "packages of $1"
    mmdebstrap --quiet --variant=minbase --include="$3" \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
      --dpkgopt='path-exclude=/usr/share/locale/*' \
      --essential-hook='mkdir -p "$1/usr/share/man/man1"' \
      --customize-hook='[ ! -e "$1/usr/bin/python3" ] || ln -sf python3 "$1/usr/bin/python"; rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
      --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
      bookworm "$folder/tmp-$2.tar"
    mv "$folder/tmp-$2.tar" "$folder/$2.tar"
  fi
  docker import --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV PYTHONUNBUFFERED=1' --change 'CMD ["python3"]' "$folder/$2.tar" "$1" >/dev/null
  log "$1: $(docker image inspect -f '{{.Size}}' "$1" | numfmt --to=iec)"
}

runtime=python3,ca-certificates,netbase,tzdata
make_base "$PYTHON_IMAGE" python "$runtime"
make_base "$BUILD_IMAGE" python-build "$runtime,python3-pip,python3-venv,python3-dev,gcc,libc6-dev,rustc-web,cargo-web"
if [ "${1:-}" = jobs ]; then
  make_base "$JAVA_IMAGE" python-java "$runtime,openjdk-17-jre-headless"
  make_base "$MAVEN_IMAGE" maven maven,openjdk-17-jre-headless,ca-certificates
fi
