#!/usr/bin/env bash
# A kind cluster that passed the short end-to-end suite, with Quire installed in the namespace `quire` as
# docs/kubernetes/install.md describes: operator, one member of etcd, three bookies, a broker, one topic.
#   scripts/k8s/kind.sh [arguments of pytest]      instead of the short suite: another selection
# Exit code 3: a prerequisite is missing, the message says which. Otherwise that of the suite.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
cd "$here/../.."
start=$SECONDS
[ $# -gt 0 ] || set -- -m e2e_short
result=0
"$here/e2e.sh" "$@" || result=$?
[ $result != 3 ] || exit 3
log "suite ended with $result after $((SECONDS - start)) s"
export KUBECONFIG="${QUIRE_E2E_KUBECONFIG:-$QUIRE_K8S_CACHE/kubeconfig}"
in_net() { "$here/in_net.sh" "$@"; }
examples=docs/kubernetes/examples
in_net helm upgrade --install quire charts/quire --namespace quire --create-namespace --values "$examples/values-try.yaml" \
  --set "etcd.image=$(images/build.sh --names etcd)" --take-ownership --wait --timeout 5m >/dev/null
in_net kubectl --namespace quire apply -f "$examples/quickstart.yaml"
for resource in bookie/pool managedledger/orders; do
  in_net kubectl --namespace quire wait "$resource" --for=condition=Ready --timeout=5m
done
log "Quire runs in the namespace quire, after $((SECONDS - start)) s: KUBECONFIG=$KUBECONFIG scripts/k8s/in_net.sh kubectl -n quire get pods"
exit $result
