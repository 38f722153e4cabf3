#!/usr/bin/env bash
# Build tools of Kubernetes from their Go modules into the cache, each once a version:
#   build.sh kube-apiserver kube-controller-manager kubectl etcd
#
# k8s.io/kubernetes cannot be `go install`ed: its go.mod replaces the staging modules (k8s.io/api, ...) by folders that a
# module download does not have. A module of our own whose replace lines name the published modules of the same release
# (k8s.io/kubernetes v1.X.Y is k8s.io/api v0.X.Y) makes the same source build. etcd likewise has replace lines.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
command -v go >/dev/null || { log "no Go compiler: install Go, or put the tools into PATH"; exit 2; }
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off
mkdir -p "$K8S_BIN"
options=(-trimpath -gcflags=all=-dwarf=false)

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
      printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' kube-apiserver kube-controller-manager kubectl
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

build_etcd() {
  local dir="$QUIRE_K8S_CACHE/src/etcd-$ETCD_VERSION" module=go.etcd.io/etcd/server/v3
  mkdir -p "$dir"
  printf '//go:build tools\n\npackage tools\n\nimport _ "%s"\n' "$module" >"$dir/tools.go"
  [ -e "$dir/go.mod" ] || {
    printf 'module quire.local/etcd\n%s\nrequire %s %s\n' "$(grep -m1 '^go ' "$(go_mod_of "$module" "$ETCD_VERSION")")" \
      "$module" "$ETCD_VERSION" >"$dir/go.mod.new"
    mv "$dir/go.mod.new" "$dir/go.mod"
  }
  (cd "$dir" && go build "${options[@]}" -ldflags '-s -w' -o "$K8S_BIN/etcd.new" "$module")
}

for tool in "$@"; do
  case $tool in
    etcd) version=$ETCD_VERSION ;;
    kube-apiserver | kube-controller-manager | kubectl) version=$KUBE_VERSION ;;
    *) log "unknown tool $tool"; exit 2 ;;
  esac
  if [ -x "$K8S_BIN/$tool" ] && [ "$(cat "$K8S_BIN/$tool.version" 2>/dev/null)" = "$version" ]; then continue; fi
  log "building $tool $version"
  if [ "$tool" = etcd ]; then build_etcd; else build_kubernetes "$tool"; fi
  mv "$K8S_BIN/$tool.new" "$K8S_BIN/$tool" # a build that was broken off leaves nothing half done behind
  echo "$version" >"$K8S_BIN/$tool.version"
done
