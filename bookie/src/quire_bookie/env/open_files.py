"""Determines how many files and sockets this process may open, and which share of them connections may use.

A process without a free handle cannot create a journal file or an entry log, so connections must never use all of them.
"""

import contextlib
import resource

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import OPEN_FILES_MAX, OPEN_FILES_OF_OUR_OWN_MIN


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a process's handles: for clients of the binary protocols, and for its HTTP ports. The rest is for files
    and for connections that the process itself opens.
    """

    clients: int
    http: int

    @classmethod
    def of(cls, files_max: int) -> "Shares":
        """Divide `files_max` handles. At most half of them are withheld from connections."""
        own = min(files_max // 2, max(OPEN_FILES_OF_OUR_OWN_MIN, files_max // 4))
        http = files_max // 8
        return cls(max(1, files_max - own - http), max(1, http))


def open_files_max() -> int:
    """Return the number that `raise_open_files` requests: the system's limit, with a maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)


def raise_open_files() -> int:
    """Raise this process's limit of open files as far as the system allows; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < open_files_max():
        # Some systems allow less than their hard limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files_max(), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, OPEN_FILES_MAX)


def at_most(configured: int, share: int) -> int:
    """Return a configured limit of connections within its share; 0 means no configured limit."""
    return min(configured or share, share)
