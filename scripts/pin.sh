#!/usr/bin/env bash
# Write the newest versions that resolve: requirements.txt, with hashes, for the environment of development and tests, and
# images/constraints.txt for the images. Neither names a package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(command -v uv || echo .tools/bin/uv)
export() { "$uv" export --all-packages --all-extras --no-emit-workspace --frozen --no-annotate --no-header --quiet "$@"; }
"$uv" lock --upgrade --quiet
{
  echo "# Written by scripts/pin.sh (make pins); do not edit."
  export --all-groups
} >requirements.txt.new
{ export --no-dev --no-hashes; } >images/constraints.txt.new
mv requirements.txt.new requirements.txt
mv images/constraints.txt.new images/constraints.txt
