#!/usr/bin/env bash
# Downloads the Java parts of tests/compat once and prints the class path as its last line: the stock BookKeeper client with
# its metadata-store driver from Maven Central, and our own test programs compiled against it. Both are cached under the
# user's cache folder (or $XDG_CACHE_HOME), in folders named by a checksum of their sources.
#   fetch.sh FOLDER_OF_JAVA_SOURCES [SET]      SET: another list of jars in this folder, SET.xml, with checksums in SET.sha256
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(cd "${1:?folder of Java sources}" && pwd)
pom=$here/${2:-pom}.xml
sums=$here/${2:-pom}.sha256
cache=${XDG_CACHE_HOME:-$HOME/.cache}/quire/compat
mkdir -p "$cache"
exec 9> "$cache/LOCK"
flock 9

need() { command -v javac > /dev/null && command -v mvn > /dev/null; }
if ! need; then
  if command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jdk-headless maven; } >&2
  fi
  need || { echo "tests with stock Java programs need a JDK (17 or newer) and Maven on the PATH" >&2; exit 3; }
fi

jars=$cache/jars-$(sha256sum < "$pom" | cut -c1-16)
if [ ! -d "$jars" ]; then
  work=$(mktemp -d "$cache/jars.XXXXXX")
  mvn -B -ntp -q -f "$pom" dependency:copy-dependencies -DoutputDirectory="$work" -DincludeScope=runtime >&2 || { rm -rf "$work"; exit 4; }
  [ ! -f "$sums" ] || (cd "$work" && sha256sum --quiet -c "$sums" >&2) || { rm -rf "$work"; exit 6; }
  mv "$work" "$jars"
fi

mapfile -t files < <(find "$sources" -name '*.java' | sort)
classes=$cache/classes-$( (echo "$jars"; cat "${files[@]}") | sha256sum | cut -c1-16)
if [ ! -d "$classes" ]; then
  work=$(mktemp -d "$cache/classes.XXXXXX")
  javac -Xlint:-options -nowarn --release 17 -cp "$jars/*" -d "$work" "${files[@]}" >&2 || { rm -rf "$work"; exit 5; }
  mv "$work" "$classes"
fi
echo "$classes:$jars/*"
