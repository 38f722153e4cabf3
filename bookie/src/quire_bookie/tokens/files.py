"""The file that tells which tokens are good, and anew when it changes: a secret, a public key, or a list of tokens.

Never drops keys that work for a file that does not: one that cannot be read or used leaves the former in place, with a
line in the log and a count. Never logs what the file holds.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.tokens.checks import TokenCheck, TokenGrant

_log = logging.getLogger("quire.server.security")


@dataclass(slots=True)
class TokenFileStats:
    """Counters since the start, for a collector to read."""

    loads: int = 0
    load_failures: int = 0


class TokenFile:
    """A token check that follows its file. `read` gives the content (ConfigError), `make` the check (ConfigError)."""

    def __init__(self, name: str, read: Callable[[], Awaitable[bytes]], make: "Callable[[bytes], TokenCheck]") -> None:
        self._name = name
        self._read = read
        self._make = make
        self._check: TokenCheck | None = None
        self._digest = b""
        self._failure = ""
        self.stats = TokenFileStats()

    async def open(self) -> None:
        """Read for the first time. ConfigError."""
        self._take(await self._read())

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        assert self._check is not None, "opened before it is used"
        return self._check.role_of(token)

    def grant_of(self, token: str) -> "TokenGrant":
        """See TokenCheck."""
        assert self._check is not None, "opened before it is used"
        return self._check.grant_of(token)

    async def refresh(self) -> bool:
        """Read anew; whether other tokens may be good now."""
        try:
            data = await self._read()
            if hashlib.sha256(data).digest() == self._digest:
                self._failure = ""
                return False
            self._take(data)
        except ConfigError as error:
            self.stats.load_failures += 1
            if str(error) != self._failure:  # once, not at every look
                self._failure = str(error)
                _log.error("the changed %s is not taken, the former stays in use: %s", self._name, error)
            return False
        self._failure = ""
        _log.info("%s has changed and is in use", self._name)
        return True

    def _take(self, data: bytes) -> None:
        self._check = self._make(data)
        self._digest = hashlib.sha256(data).digest()
        self.stats.loads += 1
