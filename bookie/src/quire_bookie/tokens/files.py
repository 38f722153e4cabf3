"""Follows a file with credentials: a secret, a public key, a list of tokens or of passwords.

Never replaces valid content by an invalid file: if it cannot be read or used, the previous one stays in use, with a log
line and a count. Never logs content of the file.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.tokens.checks import TokenCheck, TokenGrant  # noqa: F401  a base below names the first

_log = logging.getLogger("quire.server.security")
T = TypeVar("T")


@dataclass(slots=True)
class TokenFileStats:
    """Counters since the start, for a collector."""

    loads: int = 0
    load_failures: int = 0


class CredentialFile(Generic[T]):
    """What a file means, as it is now. `read` returns the content (ConfigError), `make` its meaning (ConfigError)."""

    def __init__(self, name: str, read: Callable[[], Awaitable[bytes]], make: Callable[[bytes], T]) -> None:
        self._name = name
        self._read = read
        self._make = make
        self._value: T | None = None
        self._digest = b""
        self._failure = ""
        self.stats = TokenFileStats()

    async def open(self) -> None:
        """Read for the first time. ConfigError."""
        self._take(await self._read())

    @property
    def value(self) -> T:
        """What the file means."""
        assert self._value is not None, "opened before it is used"
        return self._value

    async def refresh(self) -> bool:
        """Read again; return whether the set of valid credentials may have changed."""
        try:
            data = await self._read()
            if hashlib.sha256(data).digest() == self._digest:
                self._failure = ""
                return False
            self._take(data)
        except ConfigError as error:
            self.stats.load_failures += 1
            if str(error) != self._failure:  # once, not at every check
                self._failure = str(error)
                _log.error("the changed %s is invalid, the previous one stays in use: %s", self._name, error)
            return False
        self._failure = ""
        _log.info("using the changed %s", self._name)
        return True

    def _take(self, data: bytes) -> None:
        self._value = self._make(data)
        self._digest = hashlib.sha256(data).digest()
        self.stats.loads += 1


class TokenFile(CredentialFile["TokenCheck"]):
    """A token check that follows its file."""

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        return self.value.role_of(token)

    def grant_of(self, token: str) -> "TokenGrant":
        """See TokenCheck."""
        return self.value.grant_of(token)
