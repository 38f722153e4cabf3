#!/usr/bin/env bash
# Publish the chart as an OCI artefact: scripts/publish_chart.sh oci://REGISTRY/PROJECT [OPTION...]
#
# The artefact is oci://REGISTRY/PROJECT/quire:VERSION, with the version of charts/quire/Chart.yaml. Log in before:
# `helm registry login REGISTRY`. Options of `helm push`, such as --plain-http or --ca-file FILE, apply to the registry.
# A published version is never replaced: users who pinned it would get another chart. --replace does it all the same.
# Prints the reference and the digest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/k8s/env.sh

usage() { echo "usage: scripts/publish_chart.sh oci://REGISTRY/PROJECT [--replace] [OPTION OF helm push...]" >&2; exit 2; }

[ $# -gt 0 ] || usage
target=${1%/}
shift
case $target in
  oci://?*) ;;
  *) echo "$target: not the address of a registry; it begins with oci://" >&2; usage ;;
esac
replace='' options=()
for option; do
  if [ "$option" = --replace ]; then replace=1; else options+=("$option"); fi
done
command -v helm >/dev/null || scripts/k8s/build.sh helm

version=$(sed -n 's/^version: *//p' charts/quire/Chart.yaml)
chart=$target/quire
if [ -z "$replace" ] && helm show chart "$chart" --version "$version" "${options[@]}" >/dev/null 2>&1; then
  echo "$chart:$version is already published: raise the version in charts/quire/Chart.yaml, or add --replace" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
helm package charts/quire --destination "$work" >/dev/null
helm push "$work/quire-$version.tgz" "$target" "${options[@]}"
