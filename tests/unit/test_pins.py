"""requirements.txt and images/constraints.txt: exact versions, hashes, no package index, and nothing left out."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements.txt"
CONSTRAINTS = ROOT / "images" / "constraints.txt"
MEMBERS = ("bookie", "broker", "operator", "jobs")
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s;]+)")


def pins(path: Path) -> dict[str, set[str]]:
    """Return the versions of each package; several where they differ by platform."""
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        if match := PIN.match(line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def wanted() -> set[str]:
    """Return the packages that the distributions and the development groups name."""
    names: set[str] = set()
    for path in [ROOT / "pyproject.toml", *(ROOT / each / "pyproject.toml" for each in MEMBERS)]:
        project = tomllib.loads(path.read_text())
        groups = [project["project"].get("dependencies", []), *project.get("dependency-groups", {}).values()]
        groups += project["project"].get("optional-dependencies", {}).values()
        for line in (line for group in groups for line in group):
            name = re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-").replace(".", "-")
            if not name.startswith("quire-"):
                names.add(name)
    return names


def test_each_requirement_has_a_version_and_a_hash() -> None:
    text = REQUIREMENTS.read_text()
    requirements = re.split(r"\n(?=[^\s#])", text)[1:]
    assert not [line for line in requirements if not PIN.match(line) or "--hash=sha256:" not in line]


def test_no_package_index_is_named() -> None:
    for path in (REQUIREMENTS, CONSTRAINTS):
        assert not re.search(r"://|--(extra-)?index-url|--find-links", path.read_text())


def test_every_dependency_is_pinned() -> None:
    assert not wanted() - pins(REQUIREMENTS).keys()


def test_images_have_the_versions_that_are_tested() -> None:
    tested = pins(REQUIREMENTS)
    assert not {name: versions for name, versions in pins(CONSTRAINTS).items() if tested.get(name) != versions}
