#!/usr/bin/env bash
# What the tests of the web console in a browser need: Chromium of Debian (root only), Selenium, the packages of console/.
set -euo pipefail
cd "$(dirname "$0")/.."

SELENIUM=selenium==4.51.0
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "install Chromium and its driver first: as root, apt-get install chromium chromium-driver" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver
fi
make env
UV=$(command -v uv || echo .tools/bin/uv)
"$UV" pip install --quiet "$SELENIUM"
npm --prefix console ci --ignore-scripts
