#!/usr/bin/env bash
# A dockerd, unless one answers already: in a network namespace of its own, which has only a loopback and what docker adds
# (bridges, veths). Nothing that a container sends can leave this machine. Docker's socket is a file, so `docker` works
# from anywhere; what needs published ports (kubectl, the tests) runs through in_net.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
export DOCKER_HOST=unix:///var/run/docker.sock
if docker info >/dev/null 2>&1; then log "dockerd answers already"; exit 0; fi
netns="/run/netns/$CLUSTER_NETNS"
[ -e "$netns" ] || ip netns add "$CLUSTER_NETNS" 2>/dev/null || skip "no network namespace can be made here"
# nsenter, not `ip netns exec`: the latter mounts a new /sys and hides /sys/fs/cgroup.
nsenter --net="$netns" sh -c '
  ip link set lo up
  sysctl -qw net.ipv4.ip_forward=1
  sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true'
run="$QUIRE_K8S_CACHE/run"
mkdir -p "$run" "$QUIRE_K8S_CACHE/docker"
rm -f /var/run/docker.pid
nohup nsenter --net="$netns" dockerd --data-root "$QUIRE_K8S_CACHE/docker" --exec-root "$run/docker" \
  --storage-driver overlay2 --host "$DOCKER_HOST" --exec-opt native.cgroupdriver=cgroupfs \
  --add-runtime "e2e-runc=$K8S_BIN/e2e-runc" --default-runtime e2e-runc >"$run/dockerd.log" 2>&1 </dev/null &
echo $! >"$run/dockerd.pid"
for _ in $(seq 120); do
  if docker info >/dev/null 2>&1; then log "dockerd is up"; exit 0; fi
  kill -0 "$(cat "$run/dockerd.pid")" 2>/dev/null || break
  sleep 0.5
done
tail -30 "$run/dockerd.log" >&2
skip "dockerd does not start on this machine (above: the end of its log)"
