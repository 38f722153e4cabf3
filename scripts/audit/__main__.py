"""The command `make audit`.

Exit codes: 0 nothing found; 1 a vulnerability, or an image that is not pinned; 2 wrong usage, or a file that cannot be
read; 3 nothing found, but a database of vulnerabilities could not be queried.
"""

import argparse
import os
import sys
from pathlib import Path

from scripts.audit import advisories, shipped
from scripts.audit.advisories import Finding, Unreachable
from scripts.audit.sbom import write_sbom
from scripts.audit.shipped import AuditError, Library

ROOT = Path(__file__).resolve().parents[2]
FOUND, USAGE, NOT_ASKED = 1, 2, 3


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the audit; return the exit code."""
    parser = argparse.ArgumentParser(prog="make audit", description="Known vulnerabilities, pins, and an SBOM.")
    parser.add_argument("--sbom", type=Path, default=root / "dist" / "quire.cdx.json", help="file for the SBOM")
    default = os.environ.get("QUIRE_ADVISORIES")
    text = "a folder of OSV records to use without a network: the unpacked exports of PyPI and crates.io"
    parser.add_argument("--advisories", type=Path, default=default and Path(default), metavar="FOLDER", help=text)
    given = parser.parse_args(words)
    if given.advisories is not None and not given.advisories.is_dir():
        parser.error(f"--advisories {given.advisories}: this folder does not exist")
    try:
        python, crates, jars = shipped.python_libraries(root), shipped.crates(root), shipped.jars(root)
        images = shipped.images(root)
        write_sbom(root, given.sbom, [*python, *crates, *jars], images)
        print(f"SBOM: {given.sbom} ({len(python)} Python libraries, {len(crates)} crates, {len(jars)} jars)")
        found, not_asked = _vulnerabilities(root, given.advisories, python, crates)
    except (AuditError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return USAGE
    loose = [image for image in images if not image.is_pinned]
    for finding in found:
        print(f"VULNERABLE: {finding}")
    for image in loose:
        print(f"NOT PINNED: {image.file} names {image.reference} without a digest; run images/pin_bases.sh")
    for reason in not_asked:
        print(f"NOT CHECKED: {reason}")
    if jars:
        print(f"not checked: the {len(jars)} jars of {shipped.JARS}; the SBOM lists them for another scanner")
    if found or loose:
        return FOUND
    if not_asked:
        return NOT_ASKED
    print("no known vulnerability, and every image is pinned")
    return 0


def _vulnerabilities(
    root: Path, folder: Path | None, python: list[Library], crates: list[Library]
) -> tuple[list[Finding], list[str]]:
    """Return the vulnerabilities, and the reasons why parts could not be checked."""
    found: list[Finding] = []
    not_asked: list[str] = []
    for what, libraries in (("Python libraries", python), ("crates", crates)):
        try:
            if folder is not None:
                found += advisories.folder_findings(folder, libraries)
            elif libraries is python:
                found += advisories.python_findings(libraries)
            else:
                found += advisories.crate_findings(root / shipped.CARGO_LOCK, libraries)
        except Unreachable as error:
            not_asked.append(f"{what}: {error}. Try again with a network, or with --advisories FOLDER of OSV records")
    return found, not_asked


if __name__ == "__main__":
    sys.exit(main())
