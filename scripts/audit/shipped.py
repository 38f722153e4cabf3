"""Lists the parts of releases from the files that pin them: Python libraries, crates, jars, and container images.

Only reads files. A line without a pin is an error, never skipped.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = "images/constraints.txt"
CARGO_LOCK = "bookie/native/Cargo.lock"
JARS = "images/jobs/jars.sha256"
CHART_VALUES = "charts/quire/values.yaml"
DOCKERFILES = "images/*/Dockerfile"
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)( *;.*)?")
_ARGUMENT = re.compile(r"^ARG (?P<name>[A-Z_]+_IMAGE)=(?P<image>[^$\s]+)$", re.MULTILINE)
_ETCD = re.compile(r"^etcd:\n(?:  .*\n|\n)*?  image: (?P<image>\S+)$", re.MULTILINE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


class AuditError(Exception):
    """A file has unexpected content; the message names the file."""


@dataclass(frozen=True, slots=True, order=True)
class Library:
    """One pinned library. `ecosystem`: its name in OSV. `sha256`: of its file, if the pin has it; else empty."""

    ecosystem: str
    name: str
    version: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Image:
    """A base image of the releases or an image that they start, and the file that names it."""

    reference: str
    file: str

    @property
    def is_pinned(self) -> bool:
        """Whether it is named by digest. A tag may later refer to another image."""
        return _DIGEST.search(self.reference) is not None


def python_libraries(root: Path) -> list[Library]:
    """Return the Python libraries of the images."""
    found = []
    for line in (root / CONSTRAINTS).read_text().splitlines():
        match = _PINNED.fullmatch(line.strip())
        if match is None:
            raise AuditError(f"{CONSTRAINTS}: {line!r} pins no version; run make pins")
        found.append(Library("PyPI", match["name"], match["version"]))
    return sorted(found)


def crates(root: Path) -> list[Library]:
    """Return the crates of the native module, without our own."""
    lock = tomllib.loads((root / CARGO_LOCK).read_text())
    found = []
    for package in lock["package"]:
        if "source" not in package:
            continue  # our own
        if "checksum" not in package:
            raise AuditError(f"{CARGO_LOCK}: {package['name']} has no checksum; take it from crates.io")
        found.append(Library("crates.io", package["name"], package["version"], package["checksum"]))
    return sorted(found)


def jars(root: Path) -> list[Library]:
    """Return the jars of the image of jobs, parsed from their file names."""
    found = []
    for line in (root / JARS).read_text().splitlines():
        checksum, _, name = line.partition("  ")
        match = re.fullmatch(r"(?P<name>.+?)-(?P<version>\d[^-]*(-.+)?)\.jar", name)
        if match is None or not re.fullmatch(r"[0-9a-f]{64}", checksum):
            raise AuditError(f"{JARS}: {line!r} must be a checksum and a jar with a version")
        found.append(Library("jar", match["name"], match["version"], checksum))
    return sorted(found)


def images(root: Path) -> list[Image]:
    """Return the base images of the Dockerfiles, and the etcd image of the chart."""
    found = set()
    for path in sorted(root.glob(DOCKERFILES)):
        for match in _ARGUMENT.finditer(path.read_text()):
            found.add(Image(match["image"], str(path.relative_to(root))))
    etcd = _ETCD.search((root / CHART_VALUES).read_text())
    if not found or etcd is None:
        raise AuditError(f"{DOCKERFILES} and {CHART_VALUES} must name the base images and etcd's")
    return sorted(found | {Image(etcd["image"], CHART_VALUES)})
