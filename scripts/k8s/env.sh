# shellcheck shell=bash
# Versions and places of the Kubernetes tools that tests run; override any of them in the environment.
: "${QUIRE_K8S_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/quire/k8s}" # everything built or downloaded lands under here
: "${KUBE_VERSION:=v1.34.4}"                                      # a release of k8s.io/kubernetes
: "${ETCD_VERSION:=v3.6.16}"
K8S_BIN="$QUIRE_K8S_CACHE/bin"
log() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
