#!/usr/bin/env bash
# Run a command where the ports of the cluster are: in the network namespace of the dockerd that dockerd.sh started, or
# right here where an ordinary docker made the cluster.
#   in_net.sh kubectl get pods      in_net.sh python -m pytest -m e2e tests/e2e
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
if [ -f "$QUIRE_K8S_CACHE/run/dockerd.pid" ] && [ -e "/run/netns/$CLUSTER_NETNS" ]; then
  exec nsenter --net="/run/netns/$CLUSTER_NETNS" "$@"
fi
exec "$@"
