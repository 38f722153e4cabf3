#!/usr/bin/env bash
# Write images/constraints.txt anew: the versions of third-party libraries that images are built with, as uv resolved them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(command -v uv || echo .tools/bin/uv)
"$uv" export --all-packages --no-dev --no-hashes --no-emit-workspace --frozen --no-annotate --no-header --quiet |
  grep -v '^-e\|^\.' >images/constraints.txt.new
mv images/constraints.txt.new images/constraints.txt
