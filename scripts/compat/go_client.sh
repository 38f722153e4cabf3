#!/usr/bin/env bash
# Build the test program of the stock Go client from its module into the cache, once for each state of its sources; prints
# its path.
# Exit code 2: there is no Go compiler. 5: it does not compile.
set -euo pipefail
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../tests/compat/clients/go" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quire/compat
mkdir -p "$cache"
exec 9>"$cache/LOCK.go"
flock 9
binary=$cache/go-client-$(cat "$sources"/main.go "$sources"/go.mod "$sources"/go.sum | sha256sum | cut -c1-16)
if [ ! -x "$binary" ]; then
  command -v go >/dev/null || { echo "no Go compiler: install Go to test with the stock Go client" >&2; exit 2; }
  (cd "$sources" && CGO_ENABLED=0 GOWORK=off go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o "$binary.new" .) >&2 || exit 5
  mv "$binary.new" "$binary"
fi
echo "$binary"
