#!/usr/bin/env bash
# The end-to-end tests by one command: cluster, images, loading, pytest. Each step is passed over when its result is there.
#   scripts/k8s/e2e.sh [arguments of pytest]      without any: the whole suite, with a million messages (QUIRE_E2E_MESSAGES)
#   scripts/k8s/e2e.sh -m e2e_short               a short selection
# QUIRE_E2E_KUBECONFIG names a cluster of one's own; then IMAGE_LOADER is a command that brings docker's images named in its
# arguments onto its nodes. Exit code 3: a prerequisite is missing, the message says which.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
cd "$here/../.."
if [ -n "${QUIRE_E2E_KUBECONFIG:-}" ]; then
  : "${IMAGE_LOADER:?names the command that loads images into the cluster of QUIRE_E2E_KUBECONFIG}"
else
  "$here/up.sh"
  export QUIRE_E2E_KUBECONFIG="$QUIRE_K8S_CACHE/kubeconfig"
fi
if [ $# -gt 0 ]; then
  arguments=("$@")
  [[ " $* " = *" -m "* ]] || arguments=(-m e2e "$@") # pytest deselects them otherwise
else
  arguments=(-m e2e)
  export QUIRE_E2E_MESSAGES=${QUIRE_E2E_MESSAGES:-1000000}
fi
images=(bookie broker operator e2e etcd)
[[ " ${arguments[*]} " = *e2e_short* ]] || images+=(jobs s3 prometheus metrics-server)
images/build.sh "${images[@]}"
bookie=$(images/build.sh --names bookie)
docker tag "$bookie" "$bookie-next" # for the update to another image
"$here/load_images.sh" "$bookie-next" $(images/build.sh --names "${images[@]}")
if [ -n "${QUIRE_E2E_CHAOS_S:-}" ]; then CONTROL_PLANE=1 "$here/load_images.sh" "$(images/build.sh --names e2e)"; fi # its load
exec "$here/in_net.sh" .venv/bin/python -m pytest -p no:cacheprovider -s -v tests/e2e "${arguments[@]}"
