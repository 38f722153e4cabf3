#!/usr/bin/env bash
# Build tools of Kubernetes from their Go modules into the cache, each once a version:
#   build.sh kube-apiserver kube-controller-manager kubectl etcd kind helm ...   (names: see the end)
#   build.sh cluster                                                          everything that up.sh needs
#
# k8s.io/kubernetes cannot be `go install`ed: its go.mod replaces the staging modules (k8s.io/api, ...) by folders that a
# module download does not have. A module of our own whose replace lines name the published modules of the same release
# (k8s.io/kubernetes v1.X.Y is k8s.io/api v0.X.Y) makes the same source build. etcd likewise has replace lines.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
command -v go >/dev/null || { log "no Go compiler: install Go, or put the tools into PATH"; exit 3; }
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off
mkdir -p "$K8S_BIN"
options=(-trimpath -gcflags=all=-dwarf=false -tags "remove_all_sd enable_kubernetes_sd") # of Prometheus, which has dozens more
KUBERNETES=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl)
CLUSTER=("${KUBERNETES[@]}" etcd kind coredns helm kube-router e2e-runc pause node-agent crictl)

go_mod_of() { go mod download -json "$1@$2" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p'; }

build_kubernetes() { # name of a command of k8s.io/kubernetes
  local dir="$QUIRE_K8S_CACHE/src/kubernetes-$KUBE_VERSION" minor package=k8s.io/component-base/version
  if [ ! -e "$dir/go.mod" ]; then
    mkdir -p "$dir"
    local upstream
    upstream=$(go_mod_of k8s.io/kubernetes "$KUBE_VERSION")
    {
      echo "module quire.local/kubernetes"
      grep -m1 '^go ' "$upstream"
      echo "require k8s.io/kubernetes $KUBE_VERSION"
      echo "replace ("
      sed -n "s#^\t\(k8s.io/[a-z0-9-]*\) => ./staging/.*#\t\1 => \1 v0.${KUBE_VERSION#v1.}#p" "$upstream"
      echo ")"
    } >"$dir/go.mod.new"
    {
      printf '//go:build tools\n\npackage tools\n\nimport (\n'
      printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "${KUBERNETES[@]}"
      printf ')\n'
    } >"$dir/tools.go"
    mv "$dir/go.mod.new" "$dir/go.mod"
  fi
  minor=${KUBE_VERSION#v1.}
  minor=${minor%%.*}
  (cd "$dir" && go build "${options[@]}" -o "$K8S_BIN/$1.new" -ldflags \
    "-s -w -X $package.gitVersion=$KUBE_VERSION -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean" \
    "k8s.io/kubernetes/cmd/$1")
}

build_module() { # tool, module, version, package; package "." is our own main in src/TOOL
  local dir="$QUIRE_K8S_CACHE/src/$1-$3"
  mkdir -p "$dir"
  if [ "$4" = . ]; then cp "$here/src/$1/main.go" "$dir/main.go"
  else printf '//go:build tools\n\npackage tools\n\nimport _ "%s"\n' "$4" >"$dir/tools.go"; fi
  [ -e "$dir/go.mod" ] || {
    printf 'module quire.local/%s\n%s\nrequire %s %s\n' "$1" "$(grep -m1 '^go ' "$(go_mod_of "$2" "$3")")" "$2" "$3" >"$dir/go.mod.new"
    mv "$dir/go.mod.new" "$dir/go.mod"
  }
  (cd "$dir" && go build "${options[@]}" -ldflags '-s -w' -o "$K8S_BIN/$1.new" "$4")
}

build_own() { # a tool of ours: src/TOOL
  (cd "$here/src/$1" && go build -trimpath -ldflags '-s -w' -o "$K8S_BIN/$1.new" .)
}

version_of() { # tool: what its cached build must have been made from
  case $1 in
    etcd | etcdctl) echo "$ETCD_VERSION" ;;
    kind) echo "$KIND_VERSION" ;;
    coredns) echo "$COREDNS_VERSION" ;;
    helm) echo "$HELM_VERSION" ;;
    kube-router) echo "$KUBE_ROUTER_VERSION" ;;
    prometheus) echo "$PROMETHEUS_VERSION" ;;
    metrics-server) echo "$METRICS_SERVER_VERSION" ;;
    kubeconform) echo "$KUBECONFORM_VERSION" ;;
    oci-registry) echo "$OCI_REGISTRY_VERSION" ;;
    operator-verify) echo "$OPERATOR_VERIFY_VERSION" ;;
    e2e-runc | pause | node-agent | crictl) cat "$here/src/$1"/*.go | sha256sum | cut -c1-16 ;;
    *) echo "$KUBE_VERSION" ;;
  esac
}

build() { # tool
  case $1 in
    etcd) build_module etcd go.etcd.io/etcd/server/v3 "$ETCD_VERSION" go.etcd.io/etcd/server/v3 ;;
    etcdctl) build_module etcdctl go.etcd.io/etcd/etcdctl/v3 "$ETCD_VERSION" go.etcd.io/etcd/etcdctl/v3 ;;
    kind) build_module kind sigs.k8s.io/kind "$KIND_VERSION" sigs.k8s.io/kind ;;
    coredns) build_module coredns github.com/coredns/coredns "$COREDNS_VERSION" . ;;
    helm) build_module helm helm.sh/helm/v3 "$HELM_VERSION" helm.sh/helm/v3/cmd/helm ;;
    kube-router) build_module kube-router github.com/cloudnativelabs/kube-router/v2 "$KUBE_ROUTER_VERSION" github.com/cloudnativelabs/kube-router/v2/cmd/kube-router ;;
    prometheus) build_module prometheus github.com/prometheus/prometheus "$PROMETHEUS_VERSION" github.com/prometheus/prometheus/cmd/prometheus ;;
    metrics-server) build_module metrics-server sigs.k8s.io/metrics-server "$METRICS_SERVER_VERSION" sigs.k8s.io/metrics-server/cmd/metrics-server ;;
    kubeconform) build_module kubeconform github.com/yannh/kubeconform "$KUBECONFORM_VERSION" github.com/yannh/kubeconform/cmd/kubeconform ;;
    oci-registry) build_module oci-registry github.com/google/go-containerregistry "$OCI_REGISTRY_VERSION" github.com/google/go-containerregistry/cmd/registry ;;
    operator-verify) build_module operator-verify github.com/operator-framework/api "$OPERATOR_VERIFY_VERSION" github.com/operator-framework/api/cmd/operator-verify ;;
    e2e-runc | pause | node-agent | crictl) build_own "$1" ;;
    kube-* | kubelet | kubeadm | kubectl) build_kubernetes "$1" ;;
    *) log "unknown tool $1"; exit 2 ;;
  esac
}

tools=("$@")
[ "$*" != cluster ] || tools=("${CLUSTER[@]}")
for tool in "${tools[@]}"; do
  version=$(version_of "$tool")
  if [ -x "$K8S_BIN/$tool" ] && [ "$(cat "$K8S_BIN/$tool.version" 2>/dev/null)" = "$version" ]; then continue; fi
  log "building $tool $version"
  build "$tool"
  mv "$K8S_BIN/$tool.new" "$K8S_BIN/$tool" # a build that was broken off leaves nothing half done behind
  echo "$version" >"$K8S_BIN/$tool.version"
done
