#!/usr/bin/env bash
# A real API server without nodes, for tests of CRDs and of the operator: etcd and kube-apiserver on loopback.
#   apiserver.sh start FOLDER [PORT [ETCD_PORT]]   prints the path of the kubeconfig; everything it writes is in FOLDER
#   apiserver.sh stop FOLDER                       ends what was started there
# With CONTROLLERS=1 the controller manager runs too: StatefulSets make Pod objects and what has lost its owner is
# collected, but nothing runs. Exit code 3: a tool is missing, the message says which and how to get it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
action=${1:?start or stop} folder=${2:?a folder} port=${3:-16443} etcd_port=${4:-12379}

find_tool() { # name: the cache, the folder of envtest, the PATH
  local found
  for found in "$K8S_BIN/$1" "${KUBEBUILDER_ASSETS:-/nonexistent}/$1" "$(command -v "$1" || true)"; do
    if [ -x "$found" ]; then
      echo "$found"
      return
    fi
  done
  log "$1 is missing: put it into PATH or KUBEBUILDER_ASSETS, or build it once with scripts/k8s/build.sh $1"
  exit 3
}

stop() {
  local name pid
  for name in controllers apiserver etcd; do
    if [ -f "$folder/$name.pid" ]; then
      pid=$(cat "$folder/$name.pid")
      kill "$pid" 2>/dev/null || true
      for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
      kill -9 "$pid" 2>/dev/null || true
      rm -f "$folder/$name.pid"
    fi
  done
}

if [ "$action" = stop ]; then stop; exit 0; fi
etcd=$(find_tool etcd)
apiserver=$(find_tool kube-apiserver)
controllers=
if [ -n "${CONTROLLERS:-}" ]; then controllers=$(find_tool kube-controller-manager); fi
for tool in openssl curl; do command -v $tool >/dev/null || { log "$tool is missing"; exit 3; }; done

stop
mkdir -p "$folder"
cd "$folder"
openssl genrsa -out sa.key 2048 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,admin,admin,system:masters" >tokens.csv
# No sync: a test's server need not outlive its machine.
env -i PATH="$PATH" "$etcd" --data-dir "$PWD/etcd" --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$etcd_port" \
  --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls http://127.0.0.1:0 >etcd.log 2>&1 </dev/null &
echo $! >etcd.pid
"$apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --secure-port "$port" --bind-address 127.0.0.1 \
  --advertise-address 127.0.0.1 --cert-dir "$PWD" --token-auth-file tokens.csv --authorization-mode RBAC \
  --service-account-issuer https://quire.test --service-account-key-file sa.key --service-account-signing-key-file sa.key \
  --service-cluster-ip-range 10.0.0.0/24 --disable-admission-plugins ServiceAccount --endpoint-reconciler-type none \
  >apiserver.log 2>&1 </dev/null &
echo $! >apiserver.pid
cat >kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
YAML
ready() { curl -ksf -o /dev/null -H "Authorization: Bearer $token" "https://127.0.0.1:$port/readyz"; }
for _ in $(seq 480); do
  if ready; then break; fi
  kill -0 "$(cat apiserver.pid)" 2>/dev/null || break
  sleep 0.25
done
ready || { tail -n 5 etcd.log apiserver.log >&2; stop; exit 1; }
if [ -n "$controllers" ]; then
  "$controllers" --kubeconfig "$PWD/kubeconfig" --service-account-private-key-file sa.key \
    --use-service-account-credentials=false --leader-elect=false --secure-port 0 >controllers.log 2>&1 </dev/null &
  echo $! >controllers.pid
fi
echo "$PWD/kubeconfig"
