"""The folders of the unit tests are those of the source, except where a reason is given."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
MEMBERS = ("bookie", "broker", "operator", "jobs")
OTHER_SUBJECTS = {"client": "broker/src/quire_client", "audit": "scripts/audit", "charts": "charts", "images": "images"}
"""Folders of tests/unit whose subject is not a member, with the folder of their subject."""
TESTED_ELSEWHERE = {
    "broker/config": "read by the command line: tests/unit/broker/cli and test_configuration_docs.py",
    "broker/settings": "read by the command line: tests/unit/broker/cli and test_configuration_docs.py",
}
"""Folders of the source without a folder of unit tests, with the reason. Folders of generated code need none."""


def folders(base: Path) -> set[str]:
    """Return the folders at any depth that hold Python modules other than `__init__.py`."""
    modules = [path for path in base.rglob("*.py") if path.name != "__init__.py"]
    return {path.parent.relative_to(base).as_posix() for path in modules} - {"."}


def test_subjects_of_the_unit_tests_are_members_or_known_folders() -> None:
    found = {path.name for path in UNIT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == {*MEMBERS, *OTHER_SUBJECTS}
    assert [subject for subject in OTHER_SUBJECTS.values() if not (ROOT / subject).is_dir()] == []


@pytest.mark.parametrize("member", MEMBERS)
def test_a_folder_of_unit_tests_has_the_name_of_a_folder_of_the_source(member: str) -> None:
    source = ROOT / member / "src" / f"quire_{member}"
    assert [folder for folder in sorted(folders(UNIT / member)) if not (source / folder).is_dir()] == []


@pytest.mark.parametrize("member", MEMBERS)
def test_a_folder_of_the_source_has_a_folder_of_unit_tests(member: str) -> None:
    source = ROOT / member / "src" / f"quire_{member}"
    written = {folder for folder in folders(source) if Path(folder).name not in ("proto", "generated")}
    untested = {f"{member}/{folder}" for folder in written if not (UNIT / member / folder).is_dir()}
    assert untested == {folder for folder in TESTED_ELSEWHERE if folder.startswith(f"{member}/")}
