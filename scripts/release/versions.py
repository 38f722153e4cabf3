"""The version of a release: one for all parts, the chart and the native module."""

import re
import tomllib
from pathlib import Path

import yaml


class ReleaseError(Exception):
    """A release cannot be built; the text says why."""


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file states, by the file and where in it."""
    found: dict[str, str] = {}
    for path in [*sorted(root.glob("*/pyproject.toml")), root / "scripts" / "release" / "quire" / "pyproject.toml"]:
        project = tomllib.loads(path.read_text())["project"]
        name = str(path.relative_to(root))
        found[name] = project["version"]
        groups = {"": project["dependencies"]} | project.get("optional-dependencies", {})
        for needed in (needed for several in groups.values() for needed in several if needed.startswith("quire-")):
            distribution, _, version = needed.partition("==")
            found[f"{name}: {distribution}"] = version
    for path in sorted(root.glob("*/src/quire_*/__init__.py")):
        stated = re.search(r'^__version__ = "(.+)"$', path.read_text(), re.MULTILINE)
        if stated:
            found[str(path.relative_to(root))] = stated[1]
    found["bookie/native/Cargo.toml"] = tomllib.loads((root / "bookie/native/Cargo.toml").read_text())["package"][
        "version"
    ]
    chart = yaml.safe_load((root / "charts/quire/Chart.yaml").read_text())
    found["charts/quire/Chart.yaml: appVersion"] = str(chart["appVersion"])
    return found


def the_version(root: Path) -> str:
    """Return the one version. ReleaseError if files state several."""
    found = versions(root)
    if len(set(found.values())) != 1:
        lines = "\n".join(f"  {version or 'none'}  {place}" for place, version in sorted(found.items()))
        raise ReleaseError(f"all parts need one version, and each other in it:\n{lines}")
    return next(iter(found.values()))
