#!/usr/bin/env bash
# What the tests of the web console need: the packages of console/, and for those in a browser Selenium and Chromium of
# Debian (root only).
set -euo pipefail
cd "$(dirname "$0")/.."

SELENIUM=selenium==4.51.0
npm --prefix console ci --ignore-scripts
make env
UV=$(command -v uv || echo .tools/bin/uv)
"$UV" pip install --quiet "$SELENIUM"
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "install Chromium and its driver first: as root, apt-get install chromium chromium-driver" >&2
    exit 1
  fi
  # Only the download has a limit: an installation that is ended halfway would leave dpkg in need of repair.
  INSTALL=(apt-get install -y -qq --no-install-recommends chromium chromium-driver)
  export DEBIAN_FRONTEND=noninteractive
  timeout 120 apt-get update -qq
  timeout 300 "${INSTALL[@]}" --download-only
  "${INSTALL[@]}"
fi
