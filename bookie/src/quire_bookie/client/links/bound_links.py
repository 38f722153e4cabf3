"""The ways to the bookies of one ledger. No answer about another ledger under its id gets through.

When metadata went back in time, an id names a new ledger while bookies still hold an older one under it. So the creator
of a ledger puts a token into its metadata, and a bookie keeps the token with the entries. Each bookie is asked once
which token it has, beside the first request, and the answer to that request is held back until its token is known:

* the same token, or a bookie that knows of no token (another make, an earlier version, a ledger that another client
  created or copied): everything goes straight to the connection from then on;
* another token, also where the metadata name none: ForeignLedgerError in place of each answer, never *no such entry*,
  because a client without tokens may all the same have stored an entry of this ledger there;
* nothing of the ledger: asked again with the next request.

Adds and fences declare the token: a bookie that holds nothing of the ledger keeps it. They are sent only after its
answer, so that no entry of the ledger is stored without its token, and no other ledger is fenced.
"""

import asyncio
import contextlib
import logging
from asyncio import TimerHandle
from collections.abc import Callable, Collection, Iterable
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
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.errors import ForeignLedgerError, LedgerError
from quire_bookie.limits import LEDGER_TOKEN_WAIT_S
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import BookieInfoResponse, Response, Status

_log = logging.getLogger("quire.client.bound_links")
_REMEDY = (
    "the metadata went back in time, or a client chose an id that was in use: put back metadata that names the older "
    "ledger (docs/kubernetes/backup.md), or delete this one"
)
T = TypeVar("T")


class Standing(Enum):
    """How a bookie stands to a ledger."""

    RIGHT = "holds this ledger, as far as it can know"
    ABSENT = "holds nothing of it"


Verdict: TypeAlias = Standing | LedgerError
"""LedgerError: the bookie holds another ledger, or did not say."""

Judged: TypeAlias = Callable[[Verdict], None]


class BoundLinks:
    """Of one ledger; implements `Links`. `token`: as its metadata name it, or empty."""

    def __init__(self, links: Links, ledger: LedgerId, token: bytes, master_key: bytes) -> None:
        self.ledger = ledger
        self._links = links
        self._token = token
        self._master_key = master_key
        self._right: set[BookieId] = set()
        self._untold: set[BookieId] = set()
        """Bookies that hold something under the id without a token."""
        self._asking: dict[tuple[BookieId, bool], list[Judged]] = {}
        self._logged: set[BookieId] = set()

    # ---- Links
    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """See Links."""
        link = self._links.link(bookie, purpose)
        return link if bookie in self._right else _BoundLink(self, link)

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """See Links."""
        link = self._links.v3_link(bookie, purpose)
        return link if bookie in self._right else _BoundV3Link(self, bookie, link)

    @property
    def suspects(self) -> Collection[BookieId]:
        """See Links."""
        return self._links.suspects

    @property
    def health(self) -> ReplicaHealth:
        """See Links."""
        return self._links.health

    def note_failure(self, bookie: BookieId) -> None:
        """See Links."""
        self._links.note_failure(bookie)

    def now_s(self) -> float:
        """See Links."""
        return self._links.now_s()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """See Links."""
        return self._links.call_later(delay_s, callback)

    # ---- binding
    async def declare(self, bookies: Iterable[BookieId]) -> BookieId | None:
        """Bind a new ledger to its bookies; one that holds anything else under its id, or None.

        Those that do not answer within LEDGER_TOKEN_WAIT_S are left out: adds wait for them. A ledger
        without a token is not declared.
        """
        if not self._token:
            return None
        verdicts: dict[BookieId, Verdict] = {}
        waiting = set(bookies)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def judged(bookie: BookieId, verdict: Verdict) -> None:
            verdicts[bookie] = verdict
            waiting.discard(bookie)
            if not waiting and not answered.done():
                answered.set_result(None)

        for bookie in sorted(waiting):
            self.judge(bookie, partial(judged, bookie), declares=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEDGER_TOKEN_WAIT_S):
                await answered
        foreign = [bookie for bookie, verdict in verdicts.items() if isinstance(verdict, ForeignLedgerError)]
        return min((*foreign, *self._untold), default=None)

    def is_right(self, bookie: BookieId) -> bool:
        """Whether the bookie need not be asked any more."""
        return bookie in self._right

    def judge(self, bookie: BookieId, then: Judged, *, declares: bool) -> None:
        """Ask a bookie which ledger it holds; `then` is called once, later. Who asks meanwhile gets the same answer."""
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
            return Standing.RIGHT  # it does not understand, or cannot write: the request itself will tell
        if answer.ids is not None and not answer.ids.ledger_known and not declares:
            return Standing.ABSENT
        if answer.token is not None and answer.token != self._token:
            return self._foreign(bookie, answer.token)
        if answer.ids is not None and answer.ids.ledger_known and answer.token is None:
            self._untold.add(bookie)
        self._right.add(bookie)
        return Standing.RIGHT

    def _foreign(self, bookie: BookieId, token: bytes) -> ForeignLedgerError:
        self.health.foreign_answers += 1
        own = f"token {_shown(self._token)}" if self._token else "no token"
        error = ForeignLedgerError(
            f"bookie {bookie} holds another ledger with the id {self.ledger}: its token is {_shown(token)}, "
            f"and the metadata name {own}; {_REMEDY}"
        )
        if bookie not in self._logged:
            self._logged.add(bookie)
            _log.error("%s", error)
        return error


class _BoundLink:
    """See BookieLink, of a bookie that has not said yet which ledger it holds."""

    def __init__(self, links: BoundLinks, link: BookieLink) -> None:
        self.bookie = link.bookie
        self._links = links
        self._link = link
        self._held_back: list[tuple[Buffer, AddSink]] = []
        self._asking = False

    # ---- adds
    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink."""
        if not self._held_back and self._links.is_right(self.bookie):
            self._link.send_adds(ledger, frames, sink)
            return
        self._held_back.append((frames, sink))
        if not self._asking:
            self._asking = True
            self._links.judge(self.bookie, self._adds_judged, declares=True)

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """See BookieLink."""
        self._held_back = [one for one in self._held_back if one[1] is not sink]
        self._link.forget_sink(ledger, sink)

    def _adds_judged(self, verdict: Verdict) -> None:
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
        if self._links.is_right(self.bookie):
            send(answer)
        elif fence_key is None:
            held: _HeldBack[Buffer] = _HeldBack(self._links, self.bookie, answer)
            send(held.answered)
            held.ask()
        else:

            def judged(verdict: Verdict) -> None:
                if isinstance(verdict, LedgerError):
                    answer(verdict)
                else:
                    send(answer)

            self._links.judge(self.bookie, judged, declares=True)

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """See BookieLink."""
        held = _HeldBack(self._links, self.bookie, answer)
        self._link.read_batch(ledger, first, entries_max, bytes_max, held.answered)
        held.ask()


class _BoundV3Link:
    """See V3Link, of a bookie that has not said yet which ledger it holds."""

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
    """One answer that waits for the verdict on its bookie, or the verdict for the answer."""

    __slots__ = ("_answer", "_asked_again", "_bookie", "_links", "_value", "_verdict")

    def __init__(self, links: BoundLinks, bookie: BookieId, answer: Callable[[T | LedgerError], None]) -> None:
        self._links = links
        self._bookie = bookie
        self._answer = answer
        self._value: T | LedgerError | None = None
        self._verdict: Verdict | None = None
        self._asked_again = False

    def ask(self) -> None:
        """Ask for the verdict."""
        self._links.judge(self._bookie, self._judged, declares=False)

    def answered(self, value: T | LedgerError) -> None:
        """The bookie answered the request."""
        self._value = value
        self._settle()

    def _judged(self, verdict: Verdict) -> None:
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
        elif verdict is Standing.ABSENT and not isinstance(value, LedgerError) and not self._asked_again:
            # The ledger came between the two questions: which one is it?
            self._asked_again, self._verdict = True, None
            self.ask()
        else:
            self._answer(value)


def _shown(token: bytes) -> str:
    return token.decode("ascii", "backslashreplace")
