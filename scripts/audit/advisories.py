"""Finds known vulnerabilities by pip-audit and cargo-audit, or without a network in a folder of OSV records.

A database is used only after a probe: it must return a vulnerability that was published years ago. Otherwise an empty
database would look like *nothing found*.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from scripts.audit.shipped import AuditError, Library

PYTHON_PROBE = Library("PyPI", "pyyaml", "5.3")
CRATES_PROBE = Library("crates.io", "smallvec", "0.6.9")
"""The two probes; their advisories were published in 2020 and 2019."""
SERVICES = ("pypi", "osv")
TIMEOUT_S = 15
COMMAND_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A library with a known vulnerability."""

    library: Library
    advisory: str
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        remedy = f"take {' or '.join(self.fixed)}" if self.fixed else "no version without it is known"
        return f"{self.library.name} {self.library.version} ({self.library.ecosystem}): {self.advisory}; {remedy}"


class Unreachable(Exception):
    """A database cannot be used; the message gives the reason."""


def python_findings(libraries: Sequence[Library]) -> list[Finding]:
    """Ask pip-audit, with the first service that returns the probe. Unreachable when none does."""
    reasons = []
    for service in SERVICES:
        try:
            if not _pip_audit([PYTHON_PROBE], service):
                raise Unreachable(f"it does not report the vulnerability of {PYTHON_PROBE.name} {PYTHON_PROBE.version}")
            return _pip_audit(libraries, service)
        except Unreachable as error:
            reasons.append(f"{service}: {error}")
    raise Unreachable("; ".join(reasons))


def _pip_audit(libraries: Sequence[Library], service: str) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("".join(f"{one.name}=={one.version}\n" for one in libraries))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(file), "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off"]
        done = _run([*command, "--vulnerability-service", service, "--timeout", str(TIMEOUT_S)])
    return list(_of_pip_audit(_parsed(done), libraries))


def _of_pip_audit(answer: Any, libraries: Iterable[Library]) -> Iterator[Finding]:
    wanted = {_plain(one.name): one for one in libraries}
    for row in answer["dependencies"]:
        library = wanted.pop(_plain(row["name"]), None)
        if library is None or "skip_reason" in row:
            raise Unreachable(f"pip-audit skipped {row['name']}: {row.get('skip_reason', 'not asked')}")
        for each in row["vulns"]:
            yield Finding(library, " ".join([each["id"], *each.get("aliases", ())]), tuple(each["fix_versions"]))
    if wanted:
        raise Unreachable(f"pip-audit did not check {', '.join(sorted(wanted))}")


def crate_findings(lock: Path, libraries: Sequence[Library]) -> list[Finding]:
    """Ask cargo-audit, which uses the database of RustSec. Unreachable when it cannot be used."""
    if shutil.which("cargo-audit") is None:
        raise Unreachable("cargo-audit is not installed; run: cargo install cargo-audit --locked")
    answer = _parsed(_run(["cargo-audit", "audit", "--json", "--file", str(lock)]))
    if not answer["database"]["advisory-count"]:
        raise Unreachable("the database of RustSec is empty")
    return list(_of_cargo_audit(answer, libraries))


def _of_cargo_audit(answer: Any, libraries: Iterable[Library]) -> Iterator[Finding]:
    known = {(one.name, one.version): one for one in libraries}
    for row in answer["vulnerabilities"]["list"]:
        package, patched = row["package"], row["versions"]["patched"]
        library = known.get((package["name"], package["version"]))
        if library is None:
            raise AuditError(f"cargo-audit names {package['name']} {package['version']}, which is not in the lock file")
        yield Finding(library, row["advisory"]["id"], tuple(patched))


def folder_findings(folder: Path, libraries: Sequence[Library]) -> list[Finding]:
    """Search OSV records: `*.json` below a folder, as exported by OSV. Unreachable when a probe is missing."""
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text())
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", ()):
            package = affected.get("package", {})
            key = (package.get("ecosystem", ""), _plain(package.get("name", "")))
            records.setdefault(key, []).append({"id": record["id"], **affected})
    for probe in (PYTHON_PROBE, CRATES_PROBE):
        if any(one.ecosystem == probe.ecosystem for one in libraries) and not _matches(records, probe):
            raise Unreachable(f"{folder} has no record of {probe.name} {probe.version} ({probe.ecosystem})")
    return sorted(finding for library in libraries for finding in _matches(records, library))


def _matches(records: dict[tuple[str, str], list[dict[str, Any]]], library: Library) -> list[Finding]:
    found = {}
    for row in records.get((library.ecosystem, _plain(library.name)), ()):
        in_range, fixed = _in_ranges(row.get("ranges", ()), library.version)
        if in_range or library.version in row.get("versions", ()):
            found[row["id"]] = Finding(library, row["id"], fixed)
    return list(found.values())


def _in_ranges(ranges: Iterable[dict[str, Any]], version: str) -> tuple[bool, tuple[str, ...]]:
    """Return whether a range includes the version, and the versions that fix the vulnerability."""
    ours = _version(version)
    events = [sorted(one["events"], key=_event_order) for one in ranges if one.get("type") != "GIT"]
    fixed = {event["fixed"] for each in events for event in each if "fixed" in event}
    return any(_is_inside(ours, each) for each in events), tuple(sorted(fixed))


def _is_inside(ours: Version, events: list[dict[str, str]]) -> bool:
    """Return whether a version is inside one range, whose events are sorted by version."""
    inside = False
    for event in events:
        if "introduced" in event:
            inside = inside or ours >= _version(event["introduced"])
        elif "fixed" in event:
            inside = inside and ours < _version(event["fixed"])
        elif "last_affected" in event:
            inside = inside and ours <= _version(event["last_affected"])
    return inside


def _event_order(event: dict[str, str]) -> Version:
    return _version(next(iter(event.values())))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version(text.partition("-")[0].partition("+")[0])  # a SemVer version: use it without its suffixes


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"no answer in {COMMAND_TIMEOUT_S} s") from error


def _parsed(done: "subprocess.CompletedProcess[str]") -> Any:
    """Return the printed JSON. The exit code is no help: both tools exit with 1 for findings and for failures."""
    try:
        return json.loads(done.stdout)
    except ValueError:
        errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Unreachable((errors or ["no output"])[-1][:200]) from None
