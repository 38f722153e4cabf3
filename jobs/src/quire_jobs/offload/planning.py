"""What a run has to do: topics by name or pattern, of each the ledgers that the policy picks. Only reads metadata."""

from dataclasses import dataclass

from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.node_codec import decode_list
from quire_broker.topic.topic_names import TopicName
from quire_jobs.errors import NotFoundError
from quire_jobs.offload.attempt_notes import AttemptNote
from quire_jobs.offload.policy import Left, ListedLedger, OffloadPolicy, choose
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.subjects import Named


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """One ledger to offload."""

    topic: TopicName
    ledger_id: LedgerId
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`ledgers`: the largest first, so that the last to end are small. `left`: how many are left, by reason.
    `unmatched`: patterns that no topic matches yet."""

    topics: tuple[TopicName, ...]
    ledgers: tuple[PlannedLedger, ...]
    left: dict[Left, int]
    unmatched: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all ledgers."""
        return sum(ledger.size_bytes for ledger in self.ledgers)


async def plan(cluster: Cluster, named: Named, policy: OffloadPolicy, now_ms: int) -> Plan:
    """The ledgers that are due. NotFoundError for ids that the policy names and no topic lists."""
    chosen: list[PlannedLedger] = []
    left: dict[Left, int] = {}
    listed: set[LedgerId] = set()
    for topic in named.topics:
        ledgers = [_listed(record) for record in await listed_ledgers(cluster, topic.ledger_name)]
        listed.update(ledger.ledger_id for ledger in ledgers)
        choice = choose(ledgers, policy, now_ms)
        chosen += [PlannedLedger(topic, each.ledger_id, each.entries, each.size_bytes) for each in choice.chosen]
        for _, reason in choice.left:
            left[reason] = left.get(reason, 0) + 1
    missing = sorted(policy.ids - listed)
    if missing:
        names = ", ".join([*map(str, named.topics), *named.unmatched])
        raise NotFoundError(f"ledgers {', '.join(map(str, missing))}: no ledger of this id is listed by {names}")
    chosen.sort(key=lambda ledger: (-ledger.size_bytes, ledger.ledger_id))
    return Plan(named.topics, tuple(chosen), left, named.unmatched)


async def is_noted(cluster: Cluster, note: AttemptNote) -> bool | None:
    """What the metadata say of an attempt by now: True complete, False begun, None unknown to them."""
    for record in await listed_ledgers(cluster, note.topic):
        if record.ledger_id == note.ledger_id:
            context = record.offload
            return None if context is None or context.uuid != note.uuid else context.complete
    return None


async def listed_ledgers(cluster: Cluster, managed_ledger: str) -> tuple[LedgerRecord, ...]:
    """The ledgers of a managed ledger, oldest first; none where there is no such managed ledger."""
    node = await cluster.metadata.get(node_path(managed_ledger))
    return () if node is None else decode_list(node.value).ledgers


def _listed(record: LedgerRecord) -> ListedLedger:
    ledger_id = LedgerId(record.ledger_id)
    return ListedLedger(ledger_id, record.entries, record.size_bytes, record.closed_ms, record.offloaded)
