"""Reads the metadata of a stopped BookKeeper or Pulsar cluster from ZooKeeper, as the nodes that it has on etcd.

On etcd the paths and values are those of ZooKeeper, except:

* ledgers are at the paths of `metadata.layout`; on ZooKeeper their depth depends on the ledger manager;
* nodes without a value are left out where they only hold others: etcd has no parents;
* a counter is a node whose version is the count; on ZooKeeper it is the number of children that a node ever had;
* `LAYOUT` and the election of the auditor belong to ZooKeeper's drivers only.

Refuses while a client of the cluster runs, and when a node changes meanwhile: the nodes would not be of one moment.
Holds all of them in memory. Never writes to ZooKeeper. The only module that imports kazoo.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from quire_bookie.backup.format import BackupError
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.metadata.store import Node
from quire_bookie.model import LedgerId

CONNECT_TIMEOUT_S: Final = 15.0
SESSION_TIMEOUT_S: Final = 30.0
READS_AT_ONCE: Final = 500
PAGE_NODES: Final = 1000
COUNTERS: Final = "/counters/"
_OF_ZOOKEEPER: Final = ("/zookeeper", f"{layout.ROOT}/LAYOUT", f"{layout.ROOT}/underreplication/auditorelection")
_EMPTY_KEPT: Final = (layout.ROOT, layout.AVAILABLE, layout.READ_ONLY, layout.LONG_ID_COUNTERS, DISABLE)
"""Nodes without a value that mean something, beside counters."""
_FLAGS: Final = ("/admin/flags/", f"{layout.LONG_ID_COUNTERS}/HOB-")
"""Beginnings of their paths, likewise."""
_LEDGER = re.compile(
    r"/ledgers/(?:([0-9]{2})/([0-9]{4})/L([0-9]{4})|([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})|L([0-9]+))"
)
"""The paths of BookKeeper's hierarchical, long hierarchical and flat ledger managers."""


@dataclass(frozen=True, slots=True)
class Found:
    """A node of ZooKeeper. `created`: the number of children that it ever had."""

    path: str
    value: bytes
    ephemeral: bool = False
    created: int = 0


class ZookeeperMetadata:
    """The nodes of a stopped cluster, in the order of their keys."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @classmethod
    async def read(cls, hosts: str) -> "ZookeeperMetadata":
        """Read everything below `hosts`, host:port,host:port and an optional path. BackupError."""
        return cls(converted(await asyncio.to_thread(_read, hosts)))

    async def scan(self, prefix: str) -> AsyncIterator[list[Node]]:
        """Yield the nodes whose key begins with `prefix`, ascending, in pages."""
        wanted = [node for node in self.nodes if node.key.startswith(prefix)]
        for start in range(0, len(wanted), PAGE_NODES):
            yield wanted[start : start + PAGE_NODES]


def converted(found: Iterable[Found]) -> list[Node]:
    """Return the nodes that the cluster has on etcd, in the order of keys. BackupError. Pure."""
    nodes: dict[str, Node] = {}
    highest = 0
    for one in found:
        if one.ephemeral:  # also a vote for the auditor: an auto-recovery registers nothing else
            raise BackupError(
                f"{one.path} belongs to a process that runs: stop every bookie, broker, auto-recovery and client of "
                "the cluster. The node of a killed process stays until its session ends, for half a minute"
            )
        if one.path.startswith(_OF_ZOOKEEPER):
            continue
        ledger = _ledger_of(one)
        key = one.path if ledger is None else layout.ledger_path(ledger)
        if key in nodes:
            raise BackupError(f"{one.path} is a second description of ledger {ledger}: remove the wrong one")
        if one.value or _means_something(one.path):
            is_counter = one.path.startswith(COUNTERS) or one.path == layout.ID_COUNTER
            nodes[key] = Node(key, one.value, max(0, one.created - 1) if is_counter and not one.value else 0)
        if ledger is not None and ledger < layout.SHORT_LEDGER_IDS_END:
            highest = max(highest, ledger)
    given = nodes.get(layout.ID_COUNTER)
    if highest > (0 if given is None else given.version):
        nodes[layout.ID_COUNTER] = Node(layout.ID_COUNTER, b"", highest)
    return [nodes[key] for key in sorted(nodes)]


def _means_something(path: str) -> bool:
    """Return whether a node without a value is more than the parent of others."""
    if path in _EMPTY_KEPT or path == layout.ID_COUNTER:
        return True
    return path.startswith(_FLAGS) or (path.startswith(COUNTERS) and path.count("/") == COUNTERS.count("/"))


def _ledger_of(one: Found) -> LedgerId | None:
    """Return the ledger that a node describes. BackupError: it cannot be read, so readers would not find it."""
    match = _LEDGER.fullmatch(one.path)
    if match is None:
        return None
    number = int("".join(part for part in match.groups() if part is not None))
    if number >= layout.LEDGER_IDS_END:
        raise BackupError(f"{one.path} is not the path of a ledger")
    try:
        decode_ledger_metadata(one.value)
    except MetadataFormatError as error:
        raise BackupError(f"{one.path}: {error}; repair or remove it in ZooKeeper") from error
    return LedgerId(number)


def _read(hosts: str) -> list[Found]:
    client = KazooClient(hosts=hosts, timeout=SESSION_TIMEOUT_S)
    try:
        client.start(timeout=CONNECT_TIMEOUT_S)
        client.sync("/")
        begun = client.last_zxid
        found = list(_walk(client, begun))
        _require_unchanged(client, ["/", *(one.path for one in found)], begun)
        return found
    except NoNodeError as error:
        raise BackupError(f"ZooKeeper {hosts}: a node {_CHANGED}, or the path after the addresses is wrong") from error
    except (KazooException, KazooTimeoutError, ValueError) as error:
        raise BackupError(f"ZooKeeper {hosts} cannot be read: {error or type(error).__name__}") from error
    finally:
        client.stop()
        client.close()


_CHANGED = "changed while it was read: stop every client of the cluster, and run this again"


def _require_unchanged(client: Any, paths: Sequence[str], begun: int) -> None:
    """Raise BackupError for a node that changed once it had been read: a process registered, or wrote and ended."""
    for start in range(0, len(paths), READS_AT_ONCE):
        asked = [(path, client.exists_async(path)) for path in paths[start : start + READS_AT_ONCE]]
        for path, answer in asked:
            there = answer.get()
            if there is None or max(there.mzxid, there.pzxid) > begun:
                raise BackupError(f"{path} {_CHANGED}")


def _walk(client: Any, begun: int) -> Iterator[Found]:
    """Yield every node. BackupError for one that changed after the transaction `begun`."""
    waiting = ["/"]
    while waiting:
        paths = [waiting.pop() for _ in range(min(len(waiting), READS_AT_ONCE))]
        answers = [(path, client.get_async(path), client.get_children_async(path)) for path in paths]
        for path, reading, listing in answers:
            value, stat = reading.get()
            if max(stat.mzxid, stat.pzxid) > begun:
                raise BackupError(f"{path} {_CHANGED}")
            waiting += [f"{path.rstrip('/')}/{name}" for name in listing.get()]
            if path != "/":
                # ZooKeeper reports twice the number of creations, less the number of children.
                yield Found(path, value or b"", stat.ephemeralOwner != 0, (stat.cversion + stat.numChildren) // 2)
