# shellcheck shell=bash
# Versions and places of the Kubernetes tools that tests run; override any of them in the environment.
: "${QUIRE_K8S_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/quire/k8s}" # everything built or downloaded lands under here
: "${KUBE_VERSION:=v1.34.4}"                                      # a release of k8s.io/kubernetes; the last minor with cgroup v1 on by default
: "${ETCD_VERSION:=v3.6.16}"
: "${COREDNS_VERSION:=v1.14.7}"
: "${KIND_VERSION:=v0.33.0}"
: "${HELM_VERSION:=v3.22.0}"
: "${KUBECONFORM_VERSION:=v0.8.0}"
: "${OCI_REGISTRY_VERSION:=v0.22.1}" # of google/go-containerregistry: a registry in memory
: "${OPERATOR_VERIFY_VERSION:=v0.9.1}" # of operator-framework/api: the rules of OLM bundles
: "${KUBE_ROUTER_VERSION:=v2.1.0}"  # enforces NetworkPolicies; only its firewall runs
: "${PROMETHEUS_VERSION:=v0.316.0}"  # a module's version: v0.316 is release 3.16
: "${METRICS_SERVER_VERSION:=v0.8.0}" # CPU of pods, for autoscalers
: "${VERSITYGW_VERSION:=v1.8.0}"   # as in scripts/s3/build.sh
: "${CLUSTER_NAME:=e2e}"    # of kind
: "${CLUSTER_NETNS:=e2e}"   # network namespace of the dockerd that scripts/k8s/dockerd.sh starts
: "${WORKERS:=3}"
: "${NODE_IMAGE:=local/node:$KUBE_VERSION}"
: "${PYTHON_IMAGE:=local/python:3.11-slim-bookworm}"        # where no registry is reached: what python_base.sh makes
: "${BUILD_IMAGE:=local/python-build:3.11-slim-bookworm}"   # the same with Rust
: "${JAVA_IMAGE:=local/python-java:3.11-slim-bookworm}"     # the same with Java, for images/jobs
: "${MAVEN_IMAGE:=local/maven:3}"                           # brings the jars of images/jobs
K8S_BIN="$QUIRE_K8S_CACHE/bin"
export PATH="$K8S_BIN:$PATH"
log() { printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
skip() { log "skipped: $*"; exit 3; } # a prerequisite is missing; callers tell it from a failure by the 3
