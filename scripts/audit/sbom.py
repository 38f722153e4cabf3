"""Writes the list of all shipped parts (SBOM) as CycloneDX JSON. The same pins give the same list, except its time."""

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from scripts.audit.shipped import Image, Library

_URL_TYPES = {"PyPI": "pypi", "crates.io": "cargo"}


def write_sbom(root: Path, target: Path, libraries: Sequence[Library], images: Sequence[Image]) -> None:
    """Write the SBOM; create its folder if necessary."""
    parts = [_library(one) for one in libraries] + [_image(name) for name in sorted({one.reference for one in images})]
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    whole = Component(type=ComponentType.APPLICATION, name="quire", version=version, bom_ref=f"quire@{version}")
    bom = Bom(components=parts, serial_number=uuid5(NAMESPACE_URL, _digest(version, libraries, images)))
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bom).output_to_file(str(target), allow_overwrite=True, indent=1)


def _library(one: Library) -> Component:
    kind = _URL_TYPES.get(one.ecosystem)
    url = None if kind is None else PackageURL(kind, name=one.name, version=one.version)
    return Component(
        type=ComponentType.LIBRARY,
        name=one.name,
        version=one.version,
        purl=url,
        bom_ref=f"{one.ecosystem}:{one.name}@{one.version}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)] if one.sha256 else [],
    )


def _image(reference: str) -> Component:
    name, _, digest = reference.partition("@")
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))] if digest else []
    base, _, tag = name.rpartition(":")
    return Component(type=ComponentType.CONTAINER, name=base, version=tag, bom_ref=f"image:{reference}", hashes=hashes)


def _digest(version: str, libraries: Sequence[Library], images: Sequence[Image]) -> str:
    return hashlib.sha256(repr((version, sorted(libraries), sorted(images))).encode()).hexdigest()
