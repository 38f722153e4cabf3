#!/usr/bin/env bash
# Runs every command of stock pulsar-admin against a stock standalone and ours, and writes the table of
# docs/compatibility.md. Needs a JDK, Maven, and about 1.5 GB of memory; see scripts/peers/README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
RUN=$(mktemp -d) # a cluster without anything left from an earlier run
export RUN PULSAR_MEM="${PULSAR_MEM:--Xms256m -Xmx700m -XX:MaxDirectMemorySize=600m}"
. "$root/scripts/peers/env.sh"
trap '"$root/scripts/peers/pulsar.sh" stop; rm -rf "$RUN"' EXIT
ls "$B"/lib-pulsar/pulsar-broker-4*.jar > /dev/null 2>&1 ||
  mvn -B -ntp -q -f "$root/scripts/peers/pulsar/pom.xml" dependency:copy-dependencies -DoutputDirectory="$B/lib-pulsar" -DincludeScope=runtime
javac -nowarn -cp "$B/lib-pulsar/*" -d "$RUN/classes" "$root"/tests/compat/admin/java/org/apache/pulsar/admin/cli/*.java
"$root/scripts/peers/pulsar.sh" standalone
cd "$root"
.venv/bin/python -m tests.compat.admin.table "$RUN/classes:$B/lib-pulsar/*" \
  "http://127.0.0.1:${WEB_PORT:-8085}" "pulsar://127.0.0.1:${BROKER_PORT:-6655}" "$@"
