"""How many files and sockets this process may open, and which share of them connections may take.

A process without a free handle cannot begin a journal file or an entry log, so connections must never take all of them.
"""

import contextlib
import resource
from dataclasses import dataclass

from quire_bookie.limits import OPEN_FILES_MAX, OPEN_FILES_OF_OUR_OWN_MIN


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the handles of a process: for clients of the binary protocols, and for its HTTP ports. The rest is for files
    and for connections that the process itself begins.
    """

    clients: int
    http: int

    @classmethod
    def of(cls, files_max: int) -> "Shares":
        """Of that many handles. Half of them at most are kept from connections."""
        own = min(files_max // 2, max(OPEN_FILES_OF_OUR_OWN_MIN, files_max // 4))
        http = files_max // 8
        return cls(max(1, files_max - own - http), max(1, http))


def open_files_max() -> int:
    """The number that `raise_open_files` asks for: what the system allows, within a bound."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)


def raise_open_files() -> int:
    """Let this process open as many as the system allows; the number that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < open_files_max():
        # Some systems allow less than they say.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files_max(), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, OPEN_FILES_MAX)


def at_most(configured: int, share: int) -> int:
    """A limit of connections that was configured, within its share; 0 asks for no limit."""
    return min(configured or share, share)
