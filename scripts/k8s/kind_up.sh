#!/usr/bin/env bash
# Create the kind cluster, unless it is there and answers; RECREATE=1 makes it anew. WORKERS=n: number of worker nodes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
export KUBECONFIG="${QUIRE_E2E_KUBECONFIG:-$QUIRE_K8S_CACHE/kubeconfig}"
kubectl() { "$here/in_net.sh" kubectl "$@"; }
if [ -z "${RECREATE:-}" ] && [ "$(docker ps -q --filter "label=io.x-k8s.kind.cluster=$CLUSTER_NAME" | wc -l)" = $((WORKERS + 1)) ] &&
  kubectl get --raw /readyz >/dev/null 2>&1; then
  log "cluster $CLUSTER_NAME is there"
  exit 0
fi
config="$QUIRE_K8S_CACHE/run/kind.yaml"
mkdir -p "$QUIRE_K8S_CACHE/run"
{
  printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n'
  # A busy disk makes every request wait for etcd, until leases are lost; a test cluster need not outlive its machine.
  printf 'kubeadmConfigPatches:\n- |\n  kind: ClusterConfiguration\n  etcd:\n    local:\n      extraArgs: {unsafe-no-fsync: "true"}\n'
  printf 'nodes:\n- role: control-plane\n'
  # Three zones, so that replicas have something to be spread over.
  for n in $(seq "$WORKERS"); do
    printf -- '- role: worker\n  labels: {topology.kubernetes.io/zone: zone-%s}\n' $(((n - 1) % 3 + 1))
  done
} >"$config"
kind delete cluster --name "$CLUSTER_NAME" 2>/dev/null || true
start=$SECONDS
image=()
docker image inspect "$NODE_IMAGE" >/dev/null 2>&1 && image=(--image "$NODE_IMAGE") # else kind pulls its usual one
kind create cluster --name "$CLUSTER_NAME" "${image[@]}" --config "$config" --wait 180s "$@"
# Nodes are Ready before cluster DNS answers (CoreDNS may have to retry while kube-proxy starts).
kubectl -n kube-system rollout status deploy/coredns --timeout=180s >/dev/null
log "cluster up after $((SECONDS - start)) s; KUBECONFIG=$KUBECONFIG"
