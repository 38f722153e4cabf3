#!/usr/bin/env bash
# Bring docker's images onto the workers of the kind cluster: load_images.sh NAME... An image that all of them have under its
# id is passed over. With CONTROL_PLANE=1 onto the control plane instead. With IMAGE_LOADER that command does it, for a
# cluster that is not ours.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/env.sh"
if [ -n "${IMAGE_LOADER:-}" ]; then exec $IMAGE_LOADER "$@"; fi
role=worker
[ -z "${CONTROL_PLANE:-}" ] || role=control-plane
nodes=$(docker ps --filter "label=io.x-k8s.kind.cluster=$CLUSTER_NAME" --filter label=io.x-k8s.kind.role=$role --format '{{.Names}}')
[ -n "$nodes" ] || nodes=$CLUSTER_NAME-control-plane
folder="$QUIRE_K8S_CACHE/run/loaded"
mkdir -p "$folder"
wanted=() notes=()
for image in "$@"; do
  # The ids of the nodes' containers are part of the note: a new cluster has nothing.
  note="$(docker image inspect -f '{{.Id}}' "$image") $(docker inspect -f '{{.Id}}' $nodes | tr '\n' ' ')"
  file="$folder/$role-$(echo "$image" | tr '/:' '__')"
  [ "$(cat "$file" 2>/dev/null)" = "$note" ] || { wanted+=("$image"); notes+=("$file" "$note"); }
done
[ ${#wanted[@]} -gt 0 ] || exit 0
start=$SECONDS
kind load docker-image --name "$CLUSTER_NAME" --nodes "$(echo $nodes | tr ' ' ',')" "${wanted[@]}" >&2
for ((n = 0; n < ${#notes[@]}; n += 2)); do echo "${notes[n + 1]}" >"${notes[n]}"; done
log "loaded ${wanted[*]}: $((SECONDS - start)) s"
