#!/usr/bin/env bash
# Stop the cluster and the dockerd that dockerd.sh started (by its process id). What was built stays; PURGE=1 removes docker's data.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
docker info >/dev/null 2>&1 && kind delete cluster --name "$CLUSTER_NAME"
file="$QUIRE_K8S_CACHE/run/dockerd.pid"
if [ -f "$file" ]; then
  kill "$(cat "$file")" 2>/dev/null
  for _ in $(seq 80); do kill -0 "$(cat "$file")" 2>/dev/null || break; sleep 0.25; done
  rm -f "$file"
  ip netns del "$CLUSTER_NETNS" 2>/dev/null
  [ -z "${PURGE:-}" ] || rm -rf "$QUIRE_K8S_CACHE/docker"
fi
true
