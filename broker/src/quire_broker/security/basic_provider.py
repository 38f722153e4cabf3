"""Authenticates by user and password against an htpasswd file: Pulsar's AuthenticationProviderBasic.

A check of a password takes up to tenths of a second of processor time: it runs on a thread of its own, one at a time,
and few wait. A password that was right is remembered as a keyed hash, so that the requests of a client cost it once.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from quire_bookie.env.side_thread import SideThread
from quire_bookie.tokens.files import CredentialFile
from quire_broker.errors import AuthenticationError
from quire_broker.limits import PASSWORD_CHECKS_MAX, PASSWORDS_REMEMBERED_MAX
from quire_broker.security.credentials import BASIC, Client, Found
from quire_broker.security.passwords import is_password

_WRONG = "unknown user or wrong password"


class BasicProvider:
    """See Provider. `users`: the hash of each user's password, from a file that it follows.

    `key`: random bytes, for the hashes of right passwords.
    """

    method = BASIC

    def __init__(self, users: CredentialFile[Mapping[str, str]], key: bytes) -> None:
        self._users = users
        self._thread = SideThread("passwords")
        self._key = key
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._checks = 0

    def admit(self, shown: str) -> Found:
        """See Provider. `shown`: `user:password`."""
        user, separator, password = shown.partition(":")
        if not separator or not user:
            raise AuthenticationError("the credentials of method basic must be user:password")
        stored = self._users.value.get(user)
        client = Client(user, BASIC, proof=stored or "", provider=self)
        # With the stored hash, so that a changed password is not remembered.
        mark = hmac.digest(self._key, f"{stored}:{shown}".encode(errors="surrogatepass"), hashlib.sha256)
        if stored is not None and mark in self._right:
            self._right.move_to_end(mark)
            return client
        # That of another user in place of an unknown one: the time must not tell which users exist.
        known = next(iter(self._users.value.values())) if stored is None else stored
        return partial(self._check, client, password, known, mark)

    async def _check(self, client: Client, password: str, stored: str, mark: bytes) -> Client:
        if self._checks >= PASSWORD_CHECKS_MAX:
            raise AuthenticationError("too many passwords are being checked; try again")
        self._checks += 1
        try:
            right = await self._thread.run(partial(is_password, password, stored))
        finally:
            self._checks -= 1
        # The file may have changed meanwhile.
        if not right or not client.proof or not self.is_good(client):
            raise AuthenticationError(_WRONG)
        self._right[mark] = None
        if len(self._right) > PASSWORDS_REMEMBERED_MAX:
            self._right.popitem(last=False)
        return client

    def is_good(self, client: Client) -> bool:
        """See Provider."""
        return self._users.value.get(client.role) == client.proof

    async def refresh(self) -> bool:
        """See Provider."""
        return await self._users.refresh()
