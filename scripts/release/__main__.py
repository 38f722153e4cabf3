"""The command `make release`: wheels, source distributions, the chart, an SBOM and checksums, all in one folder.

    python -m scripts.release [--to dist/release] [--native all] [--sign KEY] [--images REGISTRY/PROJECT]

The pure wheels run everywhere; there are also wheels of `quire-bookie` with the native module, of each platform that
Rust has a standard library for. `--sign` signs the checksums with an SSH key.
Exit codes: 0 done; 1 a step failed; 2 wrong usage.
"""

import argparse
import hashlib
import os
import shutil
import sys
from pathlib import Path

from scripts.audit import shipped
from scripts.audit.sbom import write_sbom
from scripts.release.native import build_native_wheels, chosen
from scripts.release.steps import ROOT, run
from scripts.release.versions import ReleaseError, the_version
from scripts.tools import uv

PARTS = ("bookie", "broker", "operator", "jobs", "scripts/release/quire")
CHECKSUMS = "SHA256SUMS"
SIGNATURE_NAMESPACE = "quire-release"


def main(words: list[str] | None = None) -> int:
    """Build everything; return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description="Build the artefacts of a release.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "release", help="folder; it is emptied")
    parser.add_argument("--native", metavar="PLATFORM", default="all", help="native wheels: all, here, or one platform")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="private SSH key that signs the checksums")
    parser.add_argument("--images", metavar="REGISTRY/PROJECT", help="also build the images, and push them there")
    given = parser.parse_args(words)
    if given.sign is not None and not given.sign.is_file():
        parser.error(f"--sign {given.sign}: this file does not exist; make a key with ssh-keygen -t ed25519")
    target: Path = given.to.resolve()
    if target.exists() and any(target.iterdir()) and not (target / CHECKSUMS).exists():
        parser.error(f"--to {given.to}: holds files that are not of a release; give an empty or a new folder")
    try:
        version, platforms = the_version(ROOT), chosen(given.native)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        build_distributions(target)
        for reason in build_native_wheels(target, platforms):
            print(reason, file=sys.stderr)
        package_chart(target)
        libraries = [*shipped.python_libraries(ROOT), *shipped.crates(ROOT), *shipped.jars(ROOT)]
        write_sbom(ROOT, target / f"quire-{version}.cdx.json", libraries, shipped.images(ROOT))
        if given.images:
            push_images(given.images, version)
        write_checksums(target)
        if given.sign is not None:
            run("ssh-keygen", "-Y", "sign", "-n", SIGNATURE_NAMESPACE, "-f", given.sign, target / CHECKSUMS)
    except (ReleaseError, shipped.AuditError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    return 0


def build_distributions(target: Path) -> None:
    """Build a pure wheel and a source distribution of each part."""
    for part in PARTS:
        run(uv(), "build", "--quiet", "--out-dir", target, ROOT / part)
    (target / ".gitignore").unlink(missing_ok=True)  # uv writes one


def package_chart(target: Path) -> None:
    """Package the chart."""
    if shutil.which("helm") is None:
        run(ROOT / "scripts" / "k8s" / "build.sh", "helm")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quire" / "k8s"
    helm = shutil.which("helm") or Path(os.environ.get("QUIRE_K8S_CACHE", cache)) / "bin" / "helm"
    run(helm, "package", ROOT / "charts" / "quire", "--destination", target)


def push_images(place: str, version: str) -> None:
    """Build the images and push them as `place/quire-PART:version`."""
    parts = ("bookie", "broker", "operator", "jobs")
    run(ROOT / "images" / "build.sh", *parts)
    for part in parts:
        run("docker", "tag", f"quire-{part}:{version}", f"{place}/quire-{part}:{version}")
        run("docker", "push", f"{place}/quire-{part}:{version}")


def write_checksums(target: Path) -> None:
    """Write what `sha256sum --check` reads."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(target.iterdir())]
    (target / CHECKSUMS).write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
