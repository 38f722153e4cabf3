#!/usr/bin/env bash
# For quick turns while developing: bring the code of a source tree onto the workers, where QUIRE_E2E_CODE=1 mounts it over the
# code in the images (tests/e2e/manifests.py). Seconds instead of a build and a load; auto-recovery stays with its image.
#   load_code.sh [SOURCE TREE]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
cd "${1:-$here/../..}"
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for package in bookie broker operator; do cp -r "$package/src/quire_$package" "$folder/"; done
[ -e "$folder/quire_bookie/bulk/_native.abi3.so" ] || cp "$here"/../../bookie/src/quire_bookie/bulk/_native.abi3.so "$folder/quire_bookie/bulk/" || true
find "$folder" -name __pycache__ -prune -exec rm -r {} +
python3 -m compileall -q --invalidation-mode unchecked-hash "$folder"
chmod -R a+rX "$folder"
for node in $(docker ps --filter "label=io.x-k8s.kind.cluster=$CLUSTER_NAME" --filter label=io.x-k8s.kind.role=worker --format '{{.Names}}'); do
  tar -C "$folder" -c . | docker exec -i "$node" sh -c 'rm -rf /opt/quire-code.new && mkdir /opt/quire-code.new && tar -x -C /opt/quire-code.new \
    && mkdir -p /opt/quire-code && rm -rf /opt/quire-code/* && mv /opt/quire-code.new/* /opt/quire-code/'
done
