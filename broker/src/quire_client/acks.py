"""Collects the acknowledgements of one consumer until the broker has confirmed them. Does no I/O.

Those of one turn of the event loop become one ACK with a request id. When the connection ends, those without an answer
are collected again: acknowledging twice changes nothing.
"""

import asyncio
from collections.abc import Iterable

from quire_broker.managed_ledger.cursors.ack_set import words_of
from quire_broker.wire.kinds import AckKind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.errors import BrokerRefusedError

Place = tuple[int, int]
"""Ledger and entry."""


class Group:
    """Acknowledgements that are sent together, and the callers that wait for them."""

    __slots__ = ("cumulative", "single", "waiters")

    def __init__(self) -> None:
        self.single: dict[Place, int] = {}
        """The unacknowledged messages of each entry, as a mask; 0: the whole entry is acknowledged."""
        self.cumulative: tuple[Place, int] | None = None
        """The last entry of a cumulative acknowledgement, with its mask."""
        self.waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self.single) + (self.cumulative is not None)

    def note(self, place: Place, unacked: int) -> None:
        """Acknowledge a part of an entry."""
        self.single[place] = self.single.get(place, unacked) & unacked

    def note_all_to(self, place: Place, unacked: int) -> None:
        """Acknowledge everything up to an entry, and a part of it."""
        if self.cumulative is None or place > self.cumulative[0]:
            self.cumulative = (place, unacked)
        elif place == self.cumulative[0]:
            self.cumulative = (place, unacked & self.cumulative[1])

    def take(self, other: "Group") -> None:
        """Add those of another group, and its waiters."""
        for place, unacked in other.single.items():
            self.note(place, unacked)
        if other.cumulative is not None:
            self.note_all_to(*other.cumulative)
        self.waiters += other.waiters

    def commands(self, consumer_id: int) -> list[pb.CommandAck]:
        """Return the ACKs: one for the single entries, and one for the cumulative acknowledgement."""
        found = []
        if self.single:
            found.append(_command(consumer_id, AckKind.INDIVIDUAL, self.single.items()))
        if self.cumulative is not None:
            found.append(_command(consumer_id, AckKind.CUMULATIVE, [self.cumulative]))
        return found

    def waiter(self) -> "asyncio.Future[None]":
        """Return a future that is done when the broker has confirmed the group."""
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(made)
        return made

    def end(self, error: BrokerRefusedError | None) -> None:
        """Report to those that wait."""
        for waiter in self.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self.waiters.clear()


def _command(consumer_id: int, kind: AckKind, entries: Iterable[tuple[Place, int]]) -> pb.CommandAck:
    body = pb.CommandAck(consumer_id=consumer_id, ack_type=kind)
    for (ledger_id, entry_id), unacked in entries:
        body.message_id.add(ledgerId=ledger_id, entryId=entry_id, ack_set=words_of(unacked))
    return body
