"""The durable write of the submitting thread, where the system takes a part at a time or knows no RWF_DSYNC."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire_bookie.env.journal_submit_thread import write_durably


def test_what_the_system_did_not_take_at_once_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], offset: int, flags: int) -> int:
        return real(fd, [b"".join(buffers)[:1000]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    data = os.urandom(4096)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_durably(fd, 8192, [data[:100], data[100:3000], data[3000:]])
    assert os.pread(fd, 5000, 8192) == data
    os.close(fd)


def test_without_a_durable_write_call_the_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "RWF_DSYNC", raising=False)
    monkeypatch.setattr(os, "fsync", synced.append)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_durably(fd, 0, [b"abc"])
    assert synced == [fd]
    os.close(fd)
