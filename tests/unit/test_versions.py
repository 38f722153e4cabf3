"""All parts of a release have one version, and need each other in it."""

from pathlib import Path

import pytest

from scripts.release.versions import ReleaseError, the_version, versions

ROOT = Path(__file__).resolve().parents[2]


def test_every_part_states_the_same_version() -> None:
    assert the_version(ROOT) in versions(ROOT).values()
    assert len(versions(ROOT)) >= 15


def test_another_version_in_one_place_is_reported_with_the_place(tmp_path: Path) -> None:
    for place in versions(ROOT):
        path = Path(place.partition(":")[0])
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    assert the_version(tmp_path) == the_version(ROOT)
    jobs = tmp_path / "jobs" / "pyproject.toml"
    jobs.write_text(jobs.read_text().replace('"quire-broker==', '"quire-broker==9'))
    with pytest.raises(ReleaseError, match=r"  9\S+  jobs/pyproject.toml: quire-broker"):
        the_version(tmp_path)


def test_every_part_has_the_licence() -> None:
    licence = (ROOT / "LICENSE").read_text()
    for project in [*ROOT.glob("*/pyproject.toml"), ROOT / "scripts" / "release" / "quire" / "pyproject.toml"]:
        assert (project.parent / "LICENSE").read_text() == licence, project
