"""Links to the bookies of one ledger that suppress responses about another ledger with the same id.

When metadata went back in time, an id can belong to a new ledger while bookies still hold an older one under it.
Therefore the creator of a ledger stores a token in its metadata, and a bookie stores the token with the entries. Each
bookie is asked once for its token, together with the first request, and the response to that request is held back until
the token is known:

* the same token, or a bookie without a token (a Java bookie, an earlier version, a ledger that another client created
  or copied): further requests go directly to the connection;
* another token, or any token if the metadata contain none: ForeignLedgerError instead of each response, never *no such
  entry*, because a client without tokens may still have stored an entry of this ledger there;
* nothing of the ledger: asked again with the next request.

Adds and fences declare the token: a bookie that holds nothing of the ledger stores it. They are sent only after its
response, so that no entry of the ledger is stored without its token, and no other ledger is fenced.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from quire_bookie.client.links.bookie_link import (
    AddSink,
    BatchAnswer,
    BookieLink,
    BuildRequest,
    EntryAnswer,
    Links,
    Purpose,
    V3Answer,
    V3Link,
)
from quire_bookie.client.links.wrapped_links import WrappedLinks
from quire_bookie.errors import ForeignLedgerError, LedgerError
from quire_bookie.limits import LEDGER_TOKEN_WAIT_S
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import BookieInfoResponse, Response, Status

_log = logging.getLogger("quire.client.bound_links")
_REMEDY = (
    "the metadata went back in time, or a client chose an id that was in use: restore metadata that contain the older "
    "ledger (docs/kubernetes/backup.md), or delete this one"
)
T = TypeVar("T")


class Binding(Enum):
    """The relation of a bookie to a ledger."""

    BOUND = "holds this ledger, as far as its token shows"
    ABSENT = "holds nothing of this ledger"


Verdict: TypeAlias = Binding | LedgerError
"""LedgerError: the bookie holds another ledger, or did not respond."""

OnVerdict: TypeAlias = Callable[[Verdict], None]


class BoundLinks(WrappedLinks):
    """Verifies that bookies hold this ledger. `token`: the one in its metadata, or empty."""

    def __init__(self, links: Links, ledger: LedgerId, token: bytes, master_key: bytes) -> None:
        super().__init__(links)
        self.ledger = ledger
        self._token = token
        self._master_key = master_key
        self._bound: set[BookieId] = set()
        self._without_token: set[BookieId] = set()
        """Bookies that hold entries under the id without a token."""
        self._asking: dict[tuple[BookieId, bool], list[OnVerdict]] = {}
        self._logged: set[BookieId] = set()

    # ---- Links
    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """See Links."""
        link = self._links.link(bookie, purpose)
        return link if bookie in self._bound else _BoundLink(self, link)

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """See Links."""
        link = self._links.v3_link(bookie, purpose)
        return link if bookie in self._bound else _BoundV3Link(self, bookie, link)

    # ---- binding
    async def declare(self, bookies: Iterable[BookieId]) -> BookieId | None:
        """Bind a new ledger to its bookies. Return a bookie that holds another ledger under its id, or None.

        Bookies that do not respond within LEDGER_TOKEN_WAIT_S are ignored: adds wait for their response. A ledger
        without a token is not declared.
        """
        if not self._token:
            return None
        verdicts: dict[BookieId, Verdict] = {}
        waiting = set(bookies)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_verdict(bookie: BookieId, verdict: Verdict) -> None:
            verdicts[bookie] = verdict
            waiting.discard(bookie)
            if not waiting and not answered.done():
                answered.set_result(None)

        for bookie in sorted(waiting):
            self.verify(bookie, partial(on_verdict, bookie), declares=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEDGER_TOKEN_WAIT_S):
                await answered
        foreign = [bookie for bookie, verdict in verdicts.items() if isinstance(verdict, ForeignLedgerError)]
        return min((*foreign, *self._without_token), default=None)

    def is_bound(self, bookie: BookieId) -> bool:
        """Return whether the bookie is verified to hold this ledger."""
        return bookie in self._bound

    def verify(self, bookie: BookieId, then: OnVerdict, *, declares: bool) -> None:
        """Ask a bookie which ledger it holds and call `then` once, later. Concurrent calls share one request."""
        waiting = self._asking.get((bookie, declares))
        if waiting is not None:
            waiting.append(then)
            return
        self._asking[bookie, declares] = [then]
        key = self._master_key if declares and self._token else None
        build = partial(client_v3.ledger_token, ledger=self.ledger, token=self._token, master_key=key)
        self._links.v3_link(bookie).ask(build, partial(self._answered, bookie, declares))

    def _answered(self, bookie: BookieId, declares: bool, answer: Response | LedgerError) -> None:
        verdict = self._verdict(bookie, declares, answer)
        for then in self._asking.pop((bookie, declares)):
            then(verdict)

    def _verdict(self, bookie: BookieId, declares: bool, answer: Response | LedgerError) -> Verdict:
        if isinstance(answer, LedgerError):
            return answer
        if not isinstance(answer, BookieInfoResponse) or answer.status is not Status.OK:
            return Binding.BOUND  # it does not support tokens, or cannot write: its response to the request decides
        if answer.ids is not None and not answer.ids.ledger_known and not declares:
            return Binding.ABSENT
        if answer.token is not None and answer.token != self._token:
            return self._foreign(bookie, answer.token)
        if answer.ids is not None and answer.ids.ledger_known and answer.token is None:
            self._without_token.add(bookie)
        self._bound.add(bookie)
        return Binding.BOUND

    def _foreign(self, bookie: BookieId, token: bytes) -> ForeignLedgerError:
        self.health.foreign_answers += 1
        own = f"token {_shown(self._token)}" if self._token else "no token"
        error = ForeignLedgerError(
            f"bookie {bookie} holds another ledger with the id {self.ledger}: its token is {_shown(token)}, "
            f"and the metadata contain {own}; {_REMEDY}"
        )
        if bookie not in self._logged:
            self._logged.add(bookie)
            _log.error("%s", error)
        return error


class _BoundLink:
    """Implements BookieLink for a bookie that was not verified when the link was requested."""

    def __init__(self, links: BoundLinks, link: BookieLink) -> None:
        self.bookie = link.bookie
        self._links = links
        self._link = link
        self._held_back: list[tuple[Buffer, AddSink]] = []
        self._asking = False

    # ---- adds
    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink."""
        if not self._held_back and self._links.is_bound(self.bookie):
            self._link.send_adds(ledger, frames, sink)
            return
        self._held_back.append((frames, sink))
        if not self._asking:
            self._asking = True
            self._links.verify(self.bookie, self._adds_verified, declares=True)

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """See BookieLink."""
        self._held_back = [one for one in self._held_back if one[1] is not sink]
        self._link.forget_sink(ledger, sink)

    def _adds_verified(self, verdict: Verdict) -> None:
        self._asking = False
        held_back, self._held_back = self._held_back, []
        if not isinstance(verdict, LedgerError):
            for frames, sink in held_back:
                self._link.send_adds(self._links.ledger, frames, sink)
            return
        for sink in dict.fromkeys(sink for _, sink in held_back):
            sink.link_lost(self.bookie, verdict)

    # ---- reads
    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        """See BookieLink."""
        send = partial(self._link.read, ledger, entry, fence_key=fence_key, high_priority=high_priority)
        if self._links.is_bound(self.bookie):
            send(answer)
        elif fence_key is None:
            held: _HeldBack[Buffer] = _HeldBack(self._links, self.bookie, answer)
            send(held.answered)
            held.ask()
        else:

            def on_verdict(verdict: Verdict) -> None:
                if isinstance(verdict, LedgerError):
                    answer(verdict)
                else:
                    send(answer)

            self._links.verify(self.bookie, on_verdict, declares=True)

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """See BookieLink."""
        if self._links.is_bound(self.bookie):
            self._link.read_batch(ledger, first, entries_max, bytes_max, answer)
            return
        held = _HeldBack(self._links, self.bookie, answer)
        self._link.read_batch(ledger, first, entries_max, bytes_max, held.answered)
        held.ask()


class _BoundV3Link:
    """Implements V3Link for a bookie that was not verified when the link was requested."""

    def __init__(self, links: BoundLinks, bookie: BookieId, link: V3Link) -> None:
        self._links = links
        self._bookie = bookie
        self._link = link

    def ask(self, build: BuildRequest, answer: V3Answer, timeout_s: float | None = None) -> int:
        """See V3Link."""
        held: _HeldBack[Response] = _HeldBack(self._links, self._bookie, answer)
        transaction = self._link.ask(build, held.answered, timeout_s)
        held.ask()
        return transaction

    def forget(self, transaction: int) -> None:
        """See V3Link."""
        self._link.forget(transaction)


class _HeldBack(Generic[T]):
    """Holds a response until the verdict on its bookie arrives, or the verdict until the response arrives."""

    __slots__ = ("_answer", "_asked_again", "_bookie", "_links", "_value", "_verdict")

    def __init__(self, links: BoundLinks, bookie: BookieId, answer: Callable[[T | LedgerError], None]) -> None:
        self._links = links
        self._bookie = bookie
        self._answer = answer
        self._value: T | LedgerError | None = None
        self._verdict: Verdict | None = None
        self._asked_again = False

    def ask(self) -> None:
        """Request the verdict."""
        self._links.verify(self._bookie, self._verified, declares=False)

    def answered(self, value: T | LedgerError) -> None:
        """Store the bookie's response to the request."""
        self._value = value
        self._settle()

    def _verified(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._settle()

    def _settle(self) -> None:
        value, verdict = self._value, self._verdict
        if value is None or verdict is None:
            return
        if isinstance(verdict, ForeignLedgerError) or (
            isinstance(verdict, LedgerError) and not isinstance(value, LedgerError)
        ):
            self._answer(verdict)
        elif verdict is Binding.ABSENT and not isinstance(value, LedgerError) and not self._asked_again:
            # A ledger was stored between the two requests: ask again which one it is.
            self._asked_again, self._verdict = True, None
            self.ask()
        else:
            self._answer(value)


def _shown(token: bytes) -> str:
    return token.decode("ascii", "backslashreplace")
