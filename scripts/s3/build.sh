#!/usr/bin/env bash
# Build versitygw, an S3 server over a folder, from its Go module into the cache, once a version; prints its path.
# Exit code 2: there is no Go compiler.
set -euo pipefail
: "${QUIRE_S3_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/quire/s3}"
: "${VERSITYGW_VERSION:=v1.8.0}"
module=github.com/versity/versitygw
binary=$QUIRE_S3_CACHE/versitygw-$VERSITYGW_VERSION
mkdir -p "$QUIRE_S3_CACHE"
exec 9>"$QUIRE_S3_CACHE/LOCK"
flock 9
if [ ! -x "$binary" ]; then
  command -v go >/dev/null || { echo "no Go compiler: install Go to have an S3 server for tests" >&2; exit 2; }
  work=$(mktemp -d "$QUIRE_S3_CACHE/build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off
  # Within a module of our own, so that the versions of what it needs are those that it was released with.
  go mod init quire.local/s3 >/dev/null 2>&1
  go get "$module@$VERSITYGW_VERSION" >&2
  printf '//go:build tools\n\npackage tools\n\nimport _ "%s/cmd/versitygw"\n' "$module" >tools.go
  go build -trimpath -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$binary.new" "$module/cmd/versitygw" >&2
  mv "$binary.new" "$binary"
fi
echo "$binary"
