"""`EtcdMetadataStore`: the metadata store port on etcd, in the layout of Pulsar's metadata store.

A node is a key: path in UTF-8, value unchanged, version = etcd's version of the key minus one, ephemeral = has a lease.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from quire_bookie.errors import (
    BadVersionError,
    ConfigError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.limits import METADATA_PAGE_KEYS, METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata.contract import (
    after_child,
    check_key,
    check_transaction,
    check_value,
    prefix_end,
    sequence_parent,
)
from quire_bookie.metadata.etcd.connection import (
    DELETE_RANGE,
    PUT,
    RANGE,
    READ_TXN,
    TXN,
    CompactedError,
    EtcdConnection,
    LeaseGoneError,
    Method,
    TooLargeError,
    UserRefusedError,
)
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.etcd.session import EtcdSession
from quire_bookie.metadata.etcd.watching import EtcdWatch
from quire_bookie.metadata.store import ABSENT, Check, Get, MetadataStats, Node, Operation, Put, Read, SessionState
from quire_bookie.metadata.url import EtcdLocation
from quire_bookie.settings.metadata import MetadataSettings

T = TypeVar("T")


class _Seen(NamedTuple):
    """Cluster and revision in the last response. `cluster` 0: none yet."""

    cluster: int = 0
    revision: int = 0

    def is_older_than(self, other: "_Seen") -> bool:
        """Return whether `other` cannot precede this in one history."""
        return other.cluster != 0 and (self.cluster != other.cluster or self.revision < other.revision)


class EtcdMetadataStore:
    """Implements `MetadataStore` on etcd."""

    def __init__(self, location: EtcdLocation, settings: MetadataSettings) -> None:
        """Use `open`."""
        self._settings = settings
        self.stats = MetadataStats()
        self._connection = EtcdConnection(location, settings, self.stats)
        self._session = EtcdSession(self._connection, settings.session_timeout_s, self.stats)
        self._watches: list[EtcdWatch] = []
        self._seen = _Seen()
        self._closed = False

    @classmethod
    async def open(cls, location: EtcdLocation, settings: MetadataSettings) -> "EtcdMetadataStore":
        """Connect. MetadataUnavailableError if no member answers in time, ConfigError for user or TLS files."""
        store = cls(location, settings)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(store._connection.close)
            await store._connection.open()
            request = rpc.RangeRequest(key=b"/", keys_only=True)
            try:
                await store._connection.call(RANGE, request, timeout_s=settings.connect_timeout_s)
            except UserRefusedError as error:
                raise ConfigError(str(error)) from error
            undo.pop_all()
        return store

    @property
    def connection_breaks(self) -> int:
        """See the port."""
        return self._connection.breaks

    async def get(self, key: str) -> Node | None:
        """Return the node, linearizable, or None."""
        answer = await self._call(RANGE, rpc.RangeRequest(key=key.encode()))
        return self._node(answer.kvs[0]) if answer.kvs else None

    async def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the nodes of each read, all at one revision."""
        check_transaction((), (), reads)
        answer = await self._call(READ_TXN, rpc.TxnRequest(success=[_read_op(read) for read in reads]))
        found = self._found(answer, reads)
        if found is None:
            raise MetadataUnavailableError("etcd answered a read with other nodes than it was asked for")
        return found

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Write and return the new version. See the port for errors."""
        check_key(key)
        check_value(key, value)

        async def attempt(lease: int) -> int:
            put = rpc.PutRequest(key=key.encode(), value=bytes(value), lease=lease, prev_kv=expected is None)
            if expected is None:
                answer = await self._call(PUT, put)
                return int(answer.prev_kv.version)
            await self._compare_and([Check(key, expected)], [rpc.RequestOp(request_put=put)])
            return expected + 1

        return await self._with_lease(attempt, ephemeral)

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Increment the counter of the parent, then write the child. MetadataUnknownError: the child may exist."""
        parent = sequence_parent(prefix)
        number = await self._count(parent)
        key = f"{prefix}{number}"
        await self.put(key, value, ephemeral=ephemeral)
        return key

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove a node. See the port for errors."""
        check_key(key)
        request = rpc.DeleteRangeRequest(key=key.encode())
        if expected is not None:
            await self._compare_and([Check(key, expected)], [rpc.RequestOp(request_delete_range=request)])
            return
        answer = await self._call(DELETE_RANGE, request)
        if answer.deleted == 0:
            raise NodeMissingError(f"{key} does not exist")

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        """Execute all operations or none. BadVersionError. etcd executes them in order: the reads see the writes."""
        check_transaction(checks, operations, reads)

        async def attempt(lease: int) -> list[list[Node]]:
            steps = [_request_op(operation, lease) for operation in operations]
            answer = await self._compare_and(checks, [*steps, *(_read_op(read) for read in reads)])
            found = self._found(answer, reads)
            if found is None:
                raise MetadataUnknownError("etcd answered a transaction with other nodes than it was asked for")
            return found

        return await self._with_lease(attempt, any(isinstance(each, Put) and each.ephemeral for each in operations))

    async def children(self, key: str) -> list[str]:
        """Return the names of the direct children. Many nodes below one child cost only one page."""
        base = key.rstrip("/").encode() + b"/"
        start, end = base, prefix_end(base)
        names: set[bytes] = set()
        while True:
            request = rpc.RangeRequest(key=start, range_end=end, limit=METADATA_PAGE_KEYS, keys_only=True)
            answer = await self._call(RANGE, request)
            _check_page(answer, start, end)
            names.update(kv.key[len(base) :].partition(b"/")[0] for kv in answer.kvs)
            if not answer.more:
                return sorted(name.decode("utf-8", "replace") for name in names)
            start = after_child(base, answer.kvs[-1].key)

    async def count(self, prefix: str) -> int:
        """Count the nodes. etcd counts the whole range regardless of the limit."""
        start = prefix.encode()
        request = rpc.RangeRequest(key=start, range_end=prefix_end(start), limit=1, keys_only=True)
        return int((await self._call(RANGE, request)).count)

    async def scan(
        self, prefix: str, *, page_keys: int = METADATA_PAGE_KEYS, keys_only: bool = False
    ) -> AsyncIterator[list[Node]]:
        """Yield pages, all at the revision of the first one."""
        async for _, page in self.snapshot(prefix, page_keys=page_keys, keys_only=keys_only):
            yield page

    async def snapshot(
        self, prefix: str, *, page_keys: int = METADATA_PAGE_KEYS, keys_only: bool = False
    ) -> AsyncIterator[tuple[int, list[Node]]]:
        """Like `scan`, but with each page yield etcd's revision, which is the same for all."""
        start, end = prefix.encode(), prefix_end(prefix.encode())
        revision, limit = 0, page_keys
        while True:
            request = rpc.RangeRequest(key=start, range_end=end, limit=limit, revision=revision, keys_only=keys_only)
            try:
                answer = await self._call(RANGE, request)
            except TooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            except CompactedError as error:
                raise MetadataUnavailableError(f"the listing of {prefix} took too long, try again: {error}") from error
            _check_page(answer, start, end)
            revision = answer.header.revision if revision == 0 else revision
            if answer.kvs:
                yield revision, [self._node(kv) for kv in answer.kvs]
            if not answer.more:
                return
            start = answer.kvs[-1].key + b"\0"

    async def watch(self, prefix: str) -> EtcdWatch:
        """Watch changes under the prefix from now on."""
        watch = EtcdWatch(self._connection, prefix, self.stats)
        await watch.open(self._settings.operation_timeout_s)
        self._watches = [known for known in self._watches if not known.closed]
        self._watches.append(watch)
        return watch

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` on changes of the lease; returns a function that removes it."""
        return self._session.on_state(listener)

    async def close(self) -> None:
        """Revoke the lease (its nodes are removed) and close all connections. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(watch.close() for watch in self._watches))
        await self._session.close()
        await self._connection.close()

    async def _call(self, method: Method, request: Message) -> Any:
        """Make a linearizable read or a write; errors as `EtcdConnection.call`.

        Informs the session if the response proves an older copy: its revision is below one that was received before
        this call began, or the data belongs to another cluster.
        """
        before = self._seen
        answer = await self._connection.call(method, request)
        found = _Seen(answer.header.cluster_id, answer.header.revision)
        # Responses may overtake one another, and concurrent calls report an older copy only once.
        if found.is_older_than(before) and found.is_older_than(self._seen):
            self._session.went_back()
            self._seen = found
        elif not found.is_older_than(self._seen):
            self._seen = found
        return answer

    async def _with_lease(self, attempt: Callable[[int], Awaitable[T]], ephemeral: bool) -> T:
        """Run a write with the lease it needs; repeat it with a new lease if etcd does not know the first."""
        if not ephemeral:
            return await attempt(0)
        lease = await self._session.ensure()
        try:
            return await attempt(lease)
        except LeaseGoneError:
            self._session.lease_gone(lease)
            return await attempt(await self._session.ensure())

    async def _compare_and(self, checks: Sequence[Check], operations: list[rpc.RequestOp]) -> rpc.TxnResponse:
        request = rpc.TxnRequest(compare=[_compare(check) for check in checks], success=operations)
        answer = await self._call(TXN, request)
        if not answer.succeeded:
            wanted = ", ".join(f"{check.key} at {_version_text(check.version)}" for check in checks)
            raise BadVersionError(f"not as expected: {wanted}")
        found: rpc.TxnResponse = answer
        return found

    def _found(self, answer: rpc.TxnResponse, reads: Sequence[Read]) -> list[list[Node]] | None:
        """Return the nodes of the reads, which are the last steps of a transaction; None if they are others."""
        answers = answer.responses[max(0, len(answer.responses) - len(reads)) :]
        found = [[self._node(kv) for kv in one.response_range.kvs] for one in answers]
        fits = len(found) == len(reads) and all(map(_answers, reads, found))
        return found if fits else None

    async def _count(self, parent: str) -> int:
        """Return the next number of a counter. A count of unknown outcome only skips a number."""
        for _ in range(METADATA_UNKNOWN_RETRIES - 1):
            try:
                return await self.put(parent, b"")
            except MetadataUnknownError:
                continue
        return await self.put(parent, b"")

    def _node(self, kv: rpc.KeyValue) -> Node:
        owned = kv.lease != 0 and kv.lease == self._session.lease
        return Node(kv.key.decode("utf-8", "replace"), kv.value, kv.version - 1, ephemeral=kv.lease != 0, owned=owned)


def _check_page(answer: rpc.RangeResponse, start: bytes, end: bytes) -> None:
    """Raise MetadataUnavailableError for a page with which a listing would not progress or leave its range."""
    keys = [kv.key for kv in answer.kvs]
    if (answer.more and not keys) or (keys and not start <= min(keys) <= max(keys) == keys[-1] < end):
        raise MetadataUnavailableError("etcd answered a listing with keys outside of its range")


def _compare(check: Check) -> rpc.Compare:
    key = check.key.encode()
    if check.version == ABSENT:
        return rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.CREATE, key=key, create_revision=0)
    return rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.VERSION, key=key, version=check.version + 1)


def _request_op(operation: Operation, lease: int) -> rpc.RequestOp:
    key = operation.key.encode()
    if isinstance(operation, Put):
        put = rpc.PutRequest(key=key, value=operation.value, lease=lease if operation.ephemeral else 0)
        return rpc.RequestOp(request_put=put)
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def _read_op(read: Read) -> rpc.RequestOp:
    if isinstance(read, Get):
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=read.key.encode()))
    start = read.prefix.encode()
    request = rpc.RangeRequest(key=start, range_end=prefix_end(start), limit=read.nodes_max)
    return rpc.RequestOp(request_range=request)


def _answers(read: Read, nodes: list[Node]) -> bool:
    if isinstance(read, Get):
        return [node.key for node in nodes] in ([], [read.key])
    return len(nodes) <= read.nodes_max and all(node.key.startswith(read.prefix) for node in nodes)


def _version_text(version: int) -> str:
    return "absence" if version == ABSENT else f"version {version}"
