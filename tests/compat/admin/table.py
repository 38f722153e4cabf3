"""Runs every command of stock pulsar-admin against a stock standalone and ours, and writes docs/compatibility.md.

    python -m tests.compat.admin.table CLASS_PATH WEB_URL BROKER_URL

The URLs are those of a stock standalone that was started for this run; ours is started here.
`scripts/compat/admin_table.sh` does all of it. A command that is neither in `commands` nor skipped there ends the run
with an error. With `--again` the policies whose commands were all the same in the last run are not run again: their
rows stay as they are. With `--only REGEX` only the commands that match are run, after the lines that prepare for them;
they are printed, and the document stays as it is. Name the commands on which another one depends, too.
"""

import argparse
import base64
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.admin.commands import LINES, SKIPPED, policy_lines
from tests.compat.admin.comparing import Ran, Verdict, judge
from tests.support.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin: make admin-table -->", "<!-- end: make admin-table -->"
READS_MAX = 3
"""A change of a topic's policies is read back so often, until both sides show the same."""
SCHEMA = {
    "type": "AVRO",
    "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
    "properties": {},
}
ORDER = (Verdict.NOT_RUN, Verdict.NEITHER, Verdict.SAME, Verdict.DIFFERENT, Verdict.REFUSED, Verdict.MISSING)


class Side:
    """One cluster behind a process that runs commands."""

    def __init__(self, class_path: str, web: str, broker: str) -> None:
        options = ["-Xmx256m", f"-Dlog4j.configurationFile={ROOT / 'scripts/peers/log4j2.xml'}", "-Dlvl=error"]
        name = "org.apache.pulsar.admin.cli.AdminBatch"
        command = ["java", *options, "-cp", class_path, name, web, broker]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.web = web
        self.values: dict[str, str] = {}

    def run(self, words: list[str]) -> Ran:
        """Run one command and return its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        for name, value in self.values.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        code, *texts = self.process.stdout.readline().rstrip("\n").split("\t")
        out, err = (base64.b64decode(text).decode("utf-8", "replace") for text in texts)
        return Ran(int(code), out, err)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@dataclass
class Row:
    """A command with its verdict, the worst of its runs."""

    name: str
    verdict: Verdict = Verdict.NOT_RUN
    why: str = ""
    ran: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict, why: str, line: str) -> None:
        """Count one more run."""
        self.ran.append(line)
        if ORDER.index(verdict) > ORDER.index(self.verdict):
            self.verdict, self.why = verdict, why


class Comparison:
    """All runs on both sides."""

    def __init__(self, stock: Side, ours: Side, known: dict[str, Row] | None = None, only: str = "") -> None:
        """`known`: rows of an earlier run, which stay if they are not run. `only`: of the commands to run."""
        self.sides = (stock, ours)
        self.known = known or {}
        self.only = re.compile(only)
        listed = stock.run(["@list"])
        if listed.code or not listed.out.strip():
            raise SystemExit(f"pulsar-admin lists no commands: exit code {listed.code}, {listed.err.strip()!r}")
        names = [line.split("\t")[0] for line in listed.out.splitlines()]
        self.rows = {name: Row(name) for name in dict.fromkeys(names)}

    def run(self) -> None:
        """Run every line."""
        lines = [line for line in LINES if line.strip()]
        first = lines.index("= namespaces list t1") + 1
        for line in (*lines[:first], *self._policies(), *lines[first:]):
            if line[0] in "@+" or self.only.search(_name_of(line)):
                self._line(line)
        if self.only.pattern:
            return
        for name, row in self.rows.items():
            if not row.ran and name in self.known:
                self.rows[name] = self.known[name]
        unknown = [name for name, row in self.rows.items() if not row.ran and self._skipped(row) is None]
        if unknown:
            raise SystemExit(f"no line of tests/compat/admin/commands.py runs: {', '.join(unknown)}")
        for row in self.rows.values():
            if not row.ran:
                row.why = self._skipped(row) or ""

    def _policies(self) -> Iterator[str]:
        """Yield the lines of the policies, without those whose commands are all known to be the same."""
        lines = list(policy_lines(self.rows))
        subjects = [_policy_of(line) for line in lines]
        same = set(subjects)
        for line, subject in zip(lines, subjects, strict=True):
            row = self.known.get(_name_of(line))
            if row is None or row.verdict is not Verdict.SAME:
                same.discard(subject)
        yield from (line for line, subject in zip(lines, subjects, strict=True) if subject not in same)

    @staticmethod
    def _skipped(row: Row) -> str | None:
        return SKIPPED.get(row.name) or SKIPPED.get(row.name.split(" ")[0])

    def _line(self, line: str) -> None:
        if line.startswith("@"):
            self._both(shlex.split(line))
            return
        how, text = line.split(" ", 1)
        command, _, reading = text.partition(" => ")
        words = shlex.split(command)
        stock, ours = self._both(words)
        if how == "+":
            self._note_ledgers(words)
            return
        row = self.rows[" ".join(words[:2])]
        verdict, why = judge(stock, ours, how=how)
        if verdict is Verdict.SAME and reading and stock.fine:
            verdict, why = self._read_back(shlex.split(reading), how)
        row.add(verdict, why, line)
        print(f"{verdict:10} {text}   {why}", flush=True)

    def _both(self, words: list[str]) -> tuple[Ran, Ran]:
        stock, ours = (side.run(words) for side in self.sides)
        if words[0] == "@produce":
            self._note_ledgers(words)
        return stock, ours

    def _note_ledgers(self, words: list[str]) -> None:
        """Remember the ledger of the last message for commands that name it."""
        name = {"persistent://t1/ns/a": "ledger", "persistent://t1/ns/old": "old"}.get(words[1])
        if words[0] == "@produce" and name is not None:
            for side in self.sides:
                found = re.search(r'"ledgerId"\s*:\s*(\d+)', side.run(["topics", "last-message-id", words[1]]).out)
                side.values[name] = found.group(1) if found else "0"

    def _read_back(self, words: list[str], how: str) -> tuple[Verdict, str]:
        for _ in range(READS_MAX):
            stock, ours = self._both(words)
            verdict, why = judge(stock, ours, how=how)
            if verdict in (Verdict.SAME, Verdict.NEITHER):
                break
        if verdict is Verdict.NEITHER:
            return Verdict.SAME, ""
        return verdict, why and f"read back: {why}"


def report(rows: dict[str, Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    served = [row for row in rows.values() if row.verdict not in (Verdict.NOT_RUN, Verdict.NEITHER)]
    counts = Counter(row.verdict for row in rows.values())
    same = counts[Verdict.SAME]
    yield f"Of {len(rows)} commands, {len(served)} succeed on stock Pulsar 4.0.7 with the arguments of this run;"
    yield f"{same} of these ({same * 100 // max(1, len(served))} %) succeed on Quire with the same effect."
    yield ""
    yield "| verdict | commands |"
    yield "| --- | --- |"
    yield from (f"| {verdict} | {counts[verdict]} |" for verdict in Verdict)
    yield ""
    yield "| command | verdict | why |"
    yield "| --- | --- | --- |"
    yield from (f"| `{row.name}` | {row.verdict} | {row.why} |" for row in rows.values())


def _name_of(line: str) -> str:
    """Return the command of a line."""
    return " ".join(line.split()[1:3])


def _policy_of(line: str) -> str:
    """Return the group and the policy that a line reads, sets or removes."""
    group, command = _name_of(line).split(" ")
    return f"{group} {command.partition('-')[2].removesuffix('-group').removesuffix('s')}"


def known_rows() -> dict[str, Row]:
    """Return the rows of the table in the document."""
    found = {}
    for line in DOCUMENT.read_text().split(BEGIN)[1].split(END)[0].splitlines():
        parts = [part.strip() for part in line.strip().strip("|").split(" | ", 2)]
        if line.startswith("| `") and len(parts) == 3:
            name = parts[0].strip("`")
            found[name] = Row(name, Verdict(parts[1]), parts[2], ["in an earlier run"])
    return found


def write(lines: list[str]) -> None:
    """Replace the generated part of the document."""
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


def main() -> None:
    """Run the comparison and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("class_path")
    parser.add_argument("web")
    parser.add_argument("broker")
    parser.add_argument("--again", action="store_true", help="do not repeat the policies that were the same")
    parser.add_argument("--only", default="", metavar="REGEX", help="run these commands, and write no table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "schema.json"
        schema.write_text(json.dumps(SCHEMA))
        process = BrokerProcess(Path(folder))
        sides = [
            Side(options.class_path, *urls) for urls in ((options.web, options.broker), (process.http, process.url))
        ]
        try:
            for side in sides:
                side.values |= {"schema": str(schema), "broker": side.web.removeprefix("http://")}
            stock, ours = sides
            comparison = Comparison(stock, ours, known_rows() if options.again else None, options.only)
            comparison.run()
        finally:
            for side in sides:
                side.close()
            process.close()
    if not options.only:
        write(list(report(comparison.rows)))
    print(Counter(row.verdict.value for row in comparison.rows.values()), file=sys.stderr)


if __name__ == "__main__":
    main()
