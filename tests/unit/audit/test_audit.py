"""`make audit` on small trees: vulnerabilities, failed lookups, and the parts of releases."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.audit import advisories, shipped
from scripts.audit.__main__ import FOUND, NOT_ASKED, USAGE, main
from scripts.audit.advisories import CRATES_PROBE, PYTHON_PROBE, Unreachable
from scripts.audit.shipped import AuditError, Library

ROOT = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "a" * 64
ETCD = f"quay.io/coreos/etcd:v3.6.16@{DIGEST}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two libraries and images that are pinned."""
    root = tmp_path / "root"
    for name in ("images/bookie", "images/jobs", "bookie/native", "charts/quire"):
        (root / name).mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (root / shipped.CONSTRAINTS).write_text("aiohttp==3.9.1\nuvloop==0.22.0 ; sys_platform != 'win32'\n")
    (root / shipped.CARGO_LOCK).write_text(
        '[[package]]\nname = "quire-native"\nversion = "0.1.0"\n\n'
        f'[[package]]\nname = "pyo3"\nversion = "0.26.0"\nsource = "registry+x"\nchecksum = "{"b" * 64}"\n'
    )
    (root / shipped.JARS).write_text(f"{'c' * 64}  commons-io-2.18.0.jar\n")
    (root / "images/bookie/Dockerfile").write_text(
        f"ARG PYTHON_IMAGE=python:3.11@{DIGEST}\nARG BUILD_IMAGE=${{PYTHON_IMAGE}}\nFROM ${{BUILD_IMAGE}}\n"
    )
    (root / shipped.CHART_VALUES).write_text(f"images:\n  image: no\netcd:\n  enabled: true\n\n  image: {ETCD}\n")
    return root


def record(number: str, library: Library, **affected: Any) -> dict[str, Any]:
    package = {"ecosystem": library.ecosystem, "name": library.name}
    return {"id": number, "affected": [{"package": package, **affected}]}


def ranged(*events: dict[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "SEMVER", "events": list(events)}]}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The probes' vulnerabilities, and one of another version."""
    folder = tmp_path / "osv"
    folder.mkdir()
    records = [
        record("PYSEC-2020-96", PYTHON_PROBE, versions=["5.2", PYTHON_PROBE.version]),
        record("RUSTSEC-2021-0003", CRATES_PROBE, **ranged({"introduced": "0.6.3"}, {"fixed": "0.6.14"})),
        record("OLD", Library("PyPI", "aiohttp", ""), **ranged({"introduced": "0"}, {"fixed": "3.9.1"})),
    ]
    for each in records:
        (folder / f"{each['id']}.json").write_text(json.dumps(each))
    return folder


def audit(tree: Path, database: Path) -> int:
    return main(["--advisories", str(database), "--sbom", str(tree / "dist" / "sbom.json")], tree)


def test_nothing_is_found_where_nothing_is_wrong(
    tree: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tree, database) == 0
    assert "no known vulnerability, and every image is pinned" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("library", "affected", "is_hit"),
    [
        (Library("PyPI", "AioHTTP", ""), ranged({"introduced": "3.0"}, {"fixed": "3.9.2"}), True),
        (Library("PyPI", "aiohttp", ""), ranged({"introduced": "3.0"}, {"last_affected": "3.9.1"}), True),
        (Library("PyPI", "aiohttp", ""), ranged({"introduced": "3.9.2"}), False),
        (Library("PyPI", "aiohttp", ""), {"versions": ["3.9.1"]}, True),
        (Library("crates.io", "pyo3", ""), ranged({"introduced": "0.0.0-0"}, {"fixed": "0.26.1"}), True),
        (Library("crates.io", "pyo3", ""), ranged({"introduced": "0.1.0"}, {"fixed": "0.24.1"}), False),
        (
            Library("crates.io", "pyo3", ""),
            ranged({"introduced": "0.1.0"}, {"fixed": "0.2.0"}, {"introduced": "0.25.0-rc.1"}),
            True,
        ),
        (Library("npm", "pyo3", ""), ranged({"introduced": "0"}), False),
    ],
)
def test_a_record_counts_for_the_versions_that_it_names(
    *, tree: Path, database: Path, library: Library, affected: dict[str, Any], is_hit: bool
) -> None:
    (database / "new.json").write_text(json.dumps(record("NEW-1", library, **affected)))
    assert audit(tree, database) == (FOUND if is_hit else 0)


def test_a_withdrawn_record_does_not_count(tree: Path, database: Path) -> None:
    found = record("NEW-1", Library("PyPI", "aiohttp", ""), versions=["3.9.1"]) | {"withdrawn": "2026-01-01T00:00:00Z"}
    (database / "new.json").write_text(json.dumps(found))
    assert audit(tree, database) == 0


def test_a_database_that_does_not_know_the_probe_says_nothing_and_that_has_a_code_of_its_own(
    tree: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (database / "PYSEC-2020-96.json").unlink()
    assert audit(tree, database) == NOT_ASKED
    assert "NOT CHECKED: Python libraries" in capsys.readouterr().out


def test_an_image_without_a_digest_is_named(tree: Path, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tree / shipped.CHART_VALUES
    values.write_text(values.read_text().replace(ETCD, ETCD.partition("@")[0]))
    assert audit(tree, database) == FOUND
    assert "NOT PINNED: charts/quire/values.yaml names quay.io/coreos/etcd:v3.6.16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (shipped.CONSTRAINTS, "aiohttp>=3\n", "pins no version"),
        (shipped.CARGO_LOCK, '[[package]]\nname = "x"\nversion = "1"\nsource = "git+x"\n', "x has no checksum"),
        (shipped.JARS, "0123  x.jar\n", "must be a checksum and a jar"),
        (shipped.CHART_VALUES, "etcd: {}\n", "must name the base images"),
    ],
)
def test_a_line_that_pins_nothing_is_no_audit(
    *, tree: Path, database: Path, file: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / file).write_text(text)
    assert audit(tree, database) == USAGE
    assert said in capsys.readouterr().err


def test_the_sbom_names_each_part_with_its_checksum_and_is_the_same_for_the_same_pins(
    tree: Path, database: Path
) -> None:
    audit(tree, database)
    first = json.loads((tree / "dist" / "sbom.json").read_text())
    audit(tree, database)
    second = json.loads((tree / "dist" / "sbom.json").read_text())
    assert first["bomFormat"] == "CycloneDX"
    assert first["metadata"]["component"]["version"] == "1.2.3"
    parts = {one["name"]: one for one in first["components"]}
    assert parts.keys() == {"aiohttp", "uvloop", "pyo3", "commons-io", "python", "quay.io/coreos/etcd"}
    assert parts["aiohttp"]["purl"] == "pkg:pypi/aiohttp@3.9.1"
    assert parts["pyo3"]["purl"] == "pkg:cargo/pyo3@0.26.0"
    assert parts["pyo3"]["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]
    assert parts["python"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    first["metadata"].pop("timestamp")
    second["metadata"].pop("timestamp")
    assert first == second


def test_everything_that_releases_are_made_of_can_be_read() -> None:
    assert {"aiohttp", "rocksdict", "pyspark"} <= {one.name for one in shipped.python_libraries(ROOT)}
    assert "pyo3" in {one.name for one in shipped.crates(ROOT)}
    assert len(shipped.jars(ROOT)) == len((ROOT / shipped.JARS).read_text().splitlines())
    named = {image.reference.partition("@")[0] for image in shipped.images(ROOT)}
    assert {name.partition(":")[0] for name in named} == {"python", "maven", "quay.io/coreos/etcd"}


def test_answers_of_pip_audit_and_cargo_audit_are_read() -> None:
    asked = [Library("PyPI", "typing_extensions", "4.0"), Library("PyPI", "aiohttp", "3.9.1")]
    vulnerable = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3.9.2"]}
    rows: list[dict[str, Any]] = [
        {"name": "typing-extensions", "version": "4.0", "vulns": []},
        {"name": "aiohttp", "version": "3.9.1", "vulns": [vulnerable]},
    ]
    (found,) = advisories._of_pip_audit({"dependencies": rows}, asked)
    assert str(found) == "aiohttp 3.9.1 (PyPI): PYSEC-1 CVE-1; take 3.9.2"
    for partial in (rows[:1], [rows[0], {"name": "aiohttp", "skip_reason": "not on PyPI"}]):
        with pytest.raises(Unreachable, match="aiohttp"):
            list(advisories._of_pip_audit({"dependencies": partial}, asked))
    crate = Library("crates.io", "pyo3", "0.26.0")
    row = {
        "package": {"name": "pyo3", "version": "0.26.0"},
        "advisory": {"id": "RUSTSEC-1"},
        "versions": {"patched": []},
    }
    (found,) = advisories._of_cargo_audit({"vulnerabilities": {"list": [row]}}, [crate])
    assert str(found) == "pyo3 0.26.0 (crates.io): RUSTSEC-1; no version without it is known"
    with pytest.raises(AuditError):
        list(advisories._of_cargo_audit({"vulnerabilities": {"list": [row]}}, []))


def test_pins_are_written_by_digest_anew_and_not_in_part(tree: Path, tmp_path: Path) -> None:
    """The script on a copy; the registry's client is a program that knows a digest for each name, or none."""
    shutil.copy(ROOT / "images" / "pin_bases.sh", tree / "images")
    client = tmp_path / "bin" / "crane"
    client.parent.mkdir()

    def run(known: str) -> int:
        client.write_text(f'#!/bin/sh\ncase "$2" in {known}) echo sha256:{"d" * 64};; *) exit 1;; esac\n')
        client.chmod(0o755)
        path = {"PATH": f"{client.parent}:/usr/bin:/bin"}
        return subprocess.run([tree / "images" / "pin_bases.sh"], env=path, capture_output=True, check=False).returncode

    before = (tree / "images/bookie/Dockerfile").read_text()
    assert run("python:*") == 3
    assert (tree / "images/bookie/Dockerfile").read_text() == before
    assert run("python:3.11|quay.io/coreos/etcd:v3.6.16") == 0
    assert {image.reference.partition("@")[2] for image in shipped.images(tree)} == {f"sha256:{'d' * 64}"}
