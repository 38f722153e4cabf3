"""The checksum is the library's, regardless of how the module loaded it."""

import subprocess
import sys

import crc32c as library
import pytest

from quire_bookie import crc

PIECES = [b"", b"123456789", bytes(range(256)) * 40, bytearray(b"abc"), memoryview(b"0123456789")[2:7]]


def test_the_standard_check_value_is_computed() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("piece", PIECES)
def test_it_is_what_the_package_computes_alone_and_continued(piece: bytes) -> None:
    assert crc.crc32c(piece) == library.crc32c(piece)
    assert crc.crc32c(piece, 0x12345678) == library.crc32c(piece, 0x12345678)


def test_a_library_with_its_extension_elsewhere_is_imported_as_a_package() -> None:
    program = (
        "import importlib.machinery as m\n"
        "whole = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = lambda name, *more: None if name == '_crc32c' else whole(name, *more)\n"
        "from quire_bookie import crc\n"
        "import sys\n"
        "assert 'crc32c' in sys.modules and crc.crc32c(b'123456789') == 0xE3069283\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module", ["crc", "bulk", "server.process", "client"])
def test_the_package_is_not_imported_for_it(module: str) -> None:
    program = f"import sys, quire_bookie.{module}\nassert 'crc32c' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_lookup_of_the_packages_version_is_not_imported_either() -> None:
    program = "import sys, quire_bookie.crc\nassert 'email' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
