#!/usr/bin/env bash
# From nothing to a running kind cluster, by Debian packages and Go modules alone: no image registry is needed. Every step
# is passed over when its result is there: 12 minutes the first time on two cores, about a minute afterwards.
#   scripts/k8s/up.sh          then: QUIRE_E2E_KUBECONFIG=~/.cache/quire/k8s/kubeconfig scripts/k8s/in_net.sh kubectl get nodes
# Where a docker with registry access and kind are installed already: USUAL_KIND=1 uses them and kind's own node image.
# Exit code 3: something that it needs is missing; the message says what.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
if [ -n "${USUAL_KIND:-}" ]; then
  for tool in docker kind kubectl; do command -v $tool >/dev/null || skip "USUAL_KIND needs $tool"; done
  docker info >/dev/null 2>&1 || skip "USUAL_KIND needs a running docker"
  exec "$here/kind_up.sh"
fi
[ "$(uname -s)" = Linux ] || skip "needs Linux"
[ "$(id -u)" = 0 ] || skip "needs root (a dockerd of its own, network namespaces)"
command -v apt-get >/dev/null || skip "needs Debian or Ubuntu for its packages (or USUAL_KIND=1 with docker and kind)"
command -v go >/dev/null || skip "needs Go"
# CAP_SYS_ADMIN (bit 21) and CAP_NET_ADMIN (bit 12): no dockerd without them.
bounds=$((0x$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)))
[ $((bounds >> 21 & 1)) = 1 ] && [ $((bounds >> 12 & 1)) = 1 ] || skip "this machine may not make namespaces and bridges"
free_gib=$(($(df --output=avail -k "$(dirname "$QUIRE_K8S_CACHE")" 2>/dev/null | tail -1 || echo 99999999) / 1048576))
[ -d "$QUIRE_K8S_CACHE/docker" ] || [ "$free_gib" -ge 8 ] || skip "needs 8 GiB of disk under $QUIRE_K8S_CACHE, $free_gib are free"
mkdir -p "$K8S_BIN"
"$here/packages.sh"
"$here/build.sh" cluster
"$here/dockerd.sh"
"$here/node_image.sh"
"$here/kind_up.sh"
