"""One connection to one bookie over protocol V3, for what V2 lacks: LACs, long polls, deferred adds and forces.

Answers are matched by transaction, so a late one disturbs nobody and a question that is overdue fails alone. Adds that
are given as V2 frames leave as V3 adds with DEFERRED_SYNC: a pipeline need not know. Everything else is as the V2
connection has it; nothing of the hot path comes here.
"""

from dataclasses import dataclass

from quire_bookie.client.links.bookie_link import AddSink, BuildRequest, V3Answer
from quire_bookie.client.links.connection import BookieConnection, ConnectionHooks
from quire_bookie.client.settings import ClientSettings
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.wire import client_v3, v2
from quire_bookie.wire.messages import AddResponse, AuthResponse, BatchReadResponse, Response

_KEY_OFFSET = v2.LENGTH_AND_HEADER.size
_ENTRY_ID_OFFSET = v2.ADD_ENTRY_OFFSET + 8


@dataclass(slots=True)
class _Question:
    answer: V3Answer
    asked_s: float
    due_s: float


class V3Connection(BookieConnection):
    """See the module's text."""

    GENERATION = 3

    def __init__(self, bookie: BookieId, settings: ClientSettings, hooks: ConnectionHooks) -> None:
        super().__init__(bookie, settings, hooks)
        self._questions: dict[int, _Question] = {}
        self._transactions = 0
        self._heard_s = float("-inf")

    def ask(self, build: BuildRequest, answer: V3Answer, timeout_s: float | None = None) -> int:
        """Send what `build` makes for a transaction; `answer` is called once. `timeout_s`: else that of reads.

        Returns the transaction, for `forget`.
        """
        self._transactions += 1
        transaction = self._transactions
        wait_s = self._settings.read_timeout_s if timeout_s is None else timeout_s
        now_s = self._loop.time()
        self._questions[transaction] = _Question(answer, now_s, now_s + wait_s)
        self._send(build(transaction))
        return transaction

    def forget(self, transaction: int) -> None:
        """Nobody waits for that answer any more."""
        self._questions.pop(transaction, None)

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink. Acknowledged before they are durable: a force makes them so."""
        self._sinks[ledger] = sink
        view = memoryview(frames)
        adds: list[bytes] = []
        start = 0
        while start < len(view):
            stop = start + 4 + int.from_bytes(view[start : start + 4], "big")
            entry_bytes = view[start + v2.ADD_ENTRY_OFFSET : stop]
            key = bytes(view[start + _KEY_OFFSET : start + v2.ADD_ENTRY_OFFSET])
            entry = int.from_bytes(view[start + _ENTRY_ID_OFFSET : start + _ENTRY_ID_OFFSET + 8], "big")
            self._transactions += 1
            adds.append(client_v3.add(self._transactions, ledger, EntryId(entry), key, entry_bytes, deferred_sync=True))
            start = stop
        self._send(b"".join(adds))

    @property
    def is_busy(self) -> bool:
        """See BookieConnection."""
        return bool(self._questions) or super().is_busy

    def check_overdue(self, now_s: float) -> None:
        """Fail what is overdue; a bookie that has said nothing since it was asked counts as dead."""
        overdue = [number for number, question in self._questions.items() if question.due_s <= now_s]
        if any(self._heard_s < self._questions[number].asked_s for number in overdue):
            self._break(BookieUnavailableError(f"bookie {self.bookie} did not answer in time, nor anything else"))
            return
        for number in overdue:
            question = self._questions.pop(number, None)
            if question is not None:
                question.answer(BookieUnavailableError(f"bookie {self.bookie} did not answer in time"))
        super().check_overdue(now_s)

    def _dispatch(self, responses: list[Response]) -> None:
        self._heard_s = self._received_s
        adds: list[Response] = []
        for response in responses:
            if isinstance(response, AddResponse):
                adds.append(response)
            elif not isinstance(response, BatchReadResponse | AuthResponse) and response.transaction is not None:
                question = self._questions.pop(response.transaction, None)
                if question is not None:
                    question.answer(response)
        if adds:
            super()._dispatch(adds)

    def _fail_all(self, error: LedgerError) -> None:
        questions, self._questions = self._questions, {}
        super()._fail_all(error)
        for question in questions.values():
            question.answer(error)
