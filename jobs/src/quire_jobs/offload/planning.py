"""Plans a run: resolves topics by name or pattern, and picks their ledgers by policy. Only reads metadata."""

from dataclasses import dataclass

from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.names import TopicName
from quire_jobs.errors import NotFoundError
from quire_jobs.offload.attempt_notes import AttemptNote
from quire_jobs.offload.policy import Left, ListedLedger, OffloadPolicy, choose
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.subjects import Subjects


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """One ledger to offload."""

    topic: TopicName
    ledger_id: LedgerId
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`ledgers`: largest first, so that small ones finish last. `left`: number of skipped ledgers by reason.
    `unmatched`: patterns that no topic matches yet."""

    topics: tuple[TopicName, ...]
    ledgers: tuple[PlannedLedger, ...]
    left: dict[Left, int]
    unmatched: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all planned ledgers."""
        return sum(ledger.size_bytes for ledger in self.ledgers)


async def plan(cluster: Cluster, named: Subjects, policy: OffloadPolicy, now_ms: int) -> Plan:
    """Return the due ledgers. NotFoundError for ids in the policy that no topic lists."""
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
        raise NotFoundError(
            f"ledgers {', '.join(map(str, missing))}: none of these topics lists a ledger with this id: {names}"
        )
    chosen.sort(key=lambda ledger: (-ledger.size_bytes, ledger.ledger_id))
    return Plan(named.topics, tuple(chosen), left, named.unmatched)


async def is_noted(cluster: Cluster, note: AttemptNote) -> bool | None:
    """Return the state of an attempt in the metadata: True complete, False begun, None unknown."""
    for record in await listed_ledgers(cluster, note.topic):
        if record.ledger_id == note.ledger_id:
            context = record.offload
            return None if context is None or context.uuid != note.uuid else context.complete
    return None


async def listed_ledgers(cluster: Cluster, managed_ledger: str) -> tuple[LedgerRecord, ...]:
    """Return the ledgers of a managed ledger, oldest first; none if the managed ledger does not exist."""
    node = await cluster.metadata.get(node_path(managed_ledger))
    return () if node is None else decode_list(node.value).ledgers


def _listed(record: LedgerRecord) -> ListedLedger:
    ledger_id = LedgerId(record.ledger_id)
    return ListedLedger(ledger_id, record.entries, record.size_bytes, record.closed_ms, record.offloaded)
