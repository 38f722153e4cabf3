"""Takes away the calls that only Linux has, so that tests run as on macOS: `pytest -p tests.support.portable`.

Locking a folder, `statvfs`, `pread` and renames are the same there. The calls that only macOS has are not tested.
"""

import fcntl
import os
import socket
from types import ModuleType

import pytest

from quire_bookie.env import journal_submit_aio

LINUX_ONLY: tuple[tuple[ModuleType, str], ...] = (
    (os, "fdatasync"),
    (os, "posix_fallocate"),
    (os, "posix_fadvise"),
    (os, "pwritev"),
    (os, "preadv"),
    (os, "O_DIRECT"),
    (os, "O_DSYNC"),
    (os, "RWF_DSYNC"),
    (os, "eventfd"),
    (os, "sched_getaffinity"),
    (os, "pidfd_open"),
    (socket, "TCP_KEEPIDLE"),
)
F_FULLFSYNC = 51
"""The number of macOS; this kernel refuses it, as the file systems of macOS do that have no such call."""


def pytest_configure() -> None:
    """Remove them before the first test."""
    for module, name in LINUX_ONLY:
        if hasattr(module, name):
            delattr(module, name)
    setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC)  # noqa: B010 - mypy knows it as a constant of another system
    journal_submit_aio._SYSCALLS.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of those calls."""
    for item in items:
        if item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason="needs a call that only Linux has"))
