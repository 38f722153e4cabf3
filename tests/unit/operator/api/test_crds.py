"""The generated CRD files."""

from pathlib import Path

import pytest

from quire_operator.api import crds


def test_committed_files_match_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert crds.main(["--check"]) == 0, capsys.readouterr().err


def test_the_folder_has_no_other_files() -> None:
    assert set(crds.FOLDER.iterdir()) == set(crds.files(crds.FOLDER))


def test_a_stale_or_missing_file_is_reported_with_the_command_that_fixes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crds.main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("stale; run `python -m quire_operator.api.crds --write`") == len(crds.KINDS)
    assert crds.main(["--write", str(tmp_path)]) == 0
    assert crds.main(["--check", str(tmp_path)]) == 0
    changed = tmp_path / "bookies.quire.dev.yaml"
    changed.write_text(changed.read_text().replace("maximum: 250", "maximum: 251"))
    assert crds.main(["--check", str(tmp_path)]) == 1
    assert "bookies.quire.dev.yaml" in capsys.readouterr().err
