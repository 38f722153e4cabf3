"""Lines of files and pipes: none is held back, none is too long."""

import os
from pathlib import Path

import pytest

from quire_bookie.env import piped_input
from quire_bookie.errors import ConfigError
from quire_broker.cli.lines import lines_of


async def read(path: Path, bytes_max: int = 100) -> list[list[bytes]]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [lines async for lines in lines_of(descriptor, "the file", bytes_max=bytes_max)]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\n\nb", [b"a", b"", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"\xff\x00\nlast\n", [b"\xff\x00", b"last"]),
    ],
)
async def test_lines_are_the_same_whatever_a_read_returns(
    text: bytes, expected: list[bytes], read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped_input, "READ_BYTES", read_bytes)
    (tmp_path / "file").write_bytes(text)
    assert [line for lines in await read(tmp_path / "file") for line in lines] == expected


async def test_a_line_is_yielded_before_the_next_one_is_written() -> None:
    ours, theirs = os.pipe()
    found = lines_of(ours, "the pipe", bytes_max=100)
    os.write(theirs, b"one\ntwo\nthr")
    assert await anext(found) == [b"one", b"two"]
    os.write(theirs, b"ee\n")
    assert await anext(found) == [b"three"]
    os.close(theirs)
    assert [lines async for lines in found] == []
    os.close(ours)


@pytest.mark.parametrize("read_bytes", [3, 1000])
async def test_a_line_that_is_too_long_is_named_by_its_number(
    read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped_input, "READ_BYTES", read_bytes)
    (tmp_path / "file").write_bytes(b"one\ntwo\n" + b"x" * 11 + b"\n")
    with pytest.raises(ConfigError, match="the file: line 3 has more than 10 bytes"):
        await read(tmp_path / "file", bytes_max=10)


async def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file: Is a directory"):
        await read(tmp_path)
