"""Histories: records of what the clients of a simulation did and received, and checks of the guarantees.

A history only records; `check_*` compares at the end. The rules are the guarantees of the project: an acknowledged
entry is never lost, reordered or invented, and all clients agree on the last entry of a closed ledger.
"""

from dataclasses import dataclass, field


def _shown(payload: bytes) -> str:
    return repr(payload if len(payload) <= 20 else payload[:20] + b"...")


class HistoryError(AssertionError):
    """The history violates a guarantee."""


@dataclass(slots=True)
class LedgerHistory:
    """Records one ledger: the submitted and confirmed entries of its writer, and the entries that each reader got."""

    submitted: list[bytes] = field(default_factory=list)
    confirmed_up_to: int = -1
    failed: bool = False
    closings: list[int] = field(default_factory=list)
    reads: list[tuple[str, int, list[bytes]]] = field(default_factory=list)
    lacs: dict[str, int] = field(default_factory=dict)
    """The last LAC of each reader."""

    def on_submit(self, first: int, payloads: list[bytes]) -> None:
        """Record submitted entries; ids are assigned in order, without gaps."""
        if first != len(self.submitted):
            raise HistoryError(f"submit gave id {first} after {len(self.submitted)} entries")
        self.submitted += payloads

    def on_confirm(self, up_to: int) -> None:
        """Record that all entries up to `up_to` were confirmed to the writer."""
        if self.failed:
            raise HistoryError(f"confirmed {up_to} after the writer had failed")
        if not self.confirmed_up_to < up_to < len(self.submitted):
            raise HistoryError(f"confirmed {up_to} after {self.confirmed_up_to}, with {len(self.submitted)} submitted")
        self.confirmed_up_to = up_to

    def on_close(self, last: int) -> None:
        """Record that a client (writer or recovering opener) saw the ledger closed at this last entry."""
        self.closings.append(last)

    def on_lac(self, who: str, lac: int) -> None:
        """Record a LAC that a reader received; it never decreases."""
        if lac < self.lacs.get(who, -1):
            raise HistoryError(f"{who} received the LAC {self.lacs[who]}, and now {lac}")
        self.lacs[who] = lac

    def on_read(self, who: str, first: int, payloads: list[bytes]) -> None:
        """Record the entries that a reader got, from `first` on."""
        self.reads.append((who, first, payloads))

    def check(self) -> None:
        """Raise HistoryError for a lost, invented or reordered entry, or for different last entries of the ledger."""
        if len(set(self.closings)) > 1:
            raise HistoryError(f"the ledger was closed at different entries: {sorted(set(self.closings))}")
        for last in self.closings:
            if last < self.confirmed_up_to:
                raise HistoryError(f"closed at {last} although {self.confirmed_up_to} was confirmed: entries are lost")
            for who, lac in self.lacs.items():
                if last < lac:
                    raise HistoryError(f"closed at {last} although {who} received the LAC {lac}")
            if last >= len(self.submitted):
                raise HistoryError(f"closed at {last} with only {len(self.submitted)} submitted: entries are invented")
        for who, first, payloads in self.reads:
            for entry, payload in enumerate(payloads, first):
                if entry >= len(self.submitted) or payload != self.submitted[entry]:
                    raise HistoryError(
                        f"{who} read entry {entry} as {_shown(payload)}, which was never submitted there"
                    )


@dataclass(slots=True)
class CursorHistory:
    """Records the acknowledgements and seeks of one durable cursor.

    `consumed`: acknowledged, perhaps only in memory; `durably`: certainly saved. Entries in neither must be delivered.
    """

    start: tuple[int, int]
    consumed: set[bytes] = field(default_factory=set)
    durably: set[bytes] = field(default_factory=set)
    gone: bool = False
    """Whether its deletion was requested."""


@dataclass(slots=True)
class LogHistory:
    """Records a managed ledger across several owners: appends by value, acknowledgements of its cursors."""

    trims: bool = False
    attempted: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    seen: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    cursors: dict[str, CursorHistory] = field(default_factory=dict)

    def on_append(self, payload: bytes) -> None:
        """Record a requested append; every payload is unique."""
        self.attempted.append(payload)

    def on_appended(self, payload: bytes, position: tuple[int, int]) -> None:
        """Record that the append was acknowledged at this position."""
        if payload in self.acknowledged:
            raise HistoryError(f"{_shown(payload)} was acknowledged twice")
        self.acknowledged[payload] = position
        self.on_seen(payload, position)

    def on_seen(self, payload: bytes, position: tuple[int, int]) -> None:
        """Record the position at which a payload was read; it never changes."""
        if self.seen.setdefault(payload, position) != position:
            raise HistoryError(f"{_shown(payload)} is at {position} and was at {self.seen[payload]}")

    def on_seek(self, cursor: str, position: tuple[int, int]) -> None:
        """Record a begun seek to `position`, which may take effect from now on. Skipped entries count as consumed."""
        known = self.cursors[cursor]
        known.consumed |= {payload for payload, at in self.seen.items() if at < position}
        known.durably -= {payload for payload, at in self.seen.items() if at >= position}

    def on_sought(self, cursor: str, position: tuple[int, int], first: tuple[int, int]) -> None:
        """Record a durable seek. Entries from `position` on that still exist (from `first` on) are delivered again."""
        known = self.cursors[cursor]
        known.consumed -= {payload for payload, at in self.seen.items() if at >= max(position, first)}
        known.durably |= {payload for payload, at in self.seen.items() if at < position}

    def check_log(self, found: list[tuple[tuple[int, int], bytes]]) -> None:
        """Check `found`, the whole log in the order of a reader from the first position."""
        positions = [position for position, _ in found]
        if positions != sorted(set(positions)):
            raise HistoryError("positions are not strictly increasing")
        at = {payload: position for position, payload in found}
        if len(at) != len(found):
            raise HistoryError("an entry is in the log twice, but was appended once")
        attempted = set(self.attempted)
        for payload in at:
            if payload not in attempted:
                raise HistoryError(f"{_shown(payload)} was never appended")
        first = positions[0] if positions else (1 << 63, 0)
        for payload, position in self.seen.items():
            if at.get(payload) == position or (self.trims and payload not in at and position < first):
                continue
            raise HistoryError(f"{_shown(payload)} was acknowledged or read at {position} and is at {at.get(payload)}")
        order = {payload: index for index, payload in enumerate(self.attempted)}
        indexes = [order[payload] for _, payload in found]
        if indexes != sorted(indexes):
            raise HistoryError("entries are not in the order in which they were appended")
        for position, payload in found:
            self.on_seen(payload, position)

    def check_cursor(self, name: str, delivered: set[bytes]) -> None:
        """Check the payloads that a recovered cursor still delivers. Call `check_log` before."""
        known = self.cursors[name]
        for payload, position in self.seen.items():
            if position < known.start:
                continue
            if payload not in known.consumed and payload not in delivered:
                raise HistoryError(
                    f"{_shown(payload)} was never consumed by {name} and is not delivered: skipped or trimmed"
                )
            if payload in known.durably and payload in delivered:
                raise HistoryError(f"{_shown(payload)} was consumed durably by {name} and is delivered again")
