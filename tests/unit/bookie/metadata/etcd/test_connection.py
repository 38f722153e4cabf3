"""Classification of failed calls, on which every *unknown outcome* depends."""

import asyncio
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from quire_bookie.errors import MetadataError
from quire_bookie.metadata.etcd.connection import (
    CompactedError,
    EtcdConnection,
    Fault,
    LeaseGoneError,
    TooLargeError,
    UserRefusedError,
    classify,
    refusal,
)
from quire_bookie.metadata.store import MetadataStats
from quire_bookie.metadata.url import EtcdLocation
from quire_bookie.settings.metadata import MetadataSettings

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "fault"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: refused", Fault.NOT_DONE),
        (Code.UNAVAILABLE, "etcdserver: no leader", Fault.NOT_DONE),
        (Code.UNAVAILABLE, "Socket closed", Fault.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", Fault.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Fault.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", Fault.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Fault.UNKNOWN),
        (Code.CANCELLED, "context canceled", Fault.UNKNOWN),
        (Code.INTERNAL, "stream terminated by RST_STREAM", Fault.UNKNOWN),
        (Code.UNKNOWN, "", Fault.UNKNOWN),
        (Code.ABORTED, "", Fault.UNKNOWN),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Fault.NOT_DONE),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Fault.NOT_DONE),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 5)", Fault.FATAL),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Fault.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Fault.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Fault.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Fault.FATAL),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Fault.FATAL),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Fault.FATAL),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Fault.FATAL),
    ],
)
def test_each_status_has_one_meaning(code: grpc.StatusCode, details: str, fault: Fault) -> None:
    assert classify(code, details) is fault


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseGoneError),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", CompactedError),
        (Code.RESOURCE_EXHAUSTED, "Received message larger than max", TooLargeError),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", UserRefusedError),
        (Code.INVALID_ARGUMENT, "", MetadataError),
    ],
)
def test_each_refusal_has_its_error_with_the_servers_text(
    code: grpc.StatusCode, details: str, error: type[MetadataError]
) -> None:
    made = refusal(code, details)
    assert type(made) is error
    assert (details or code.name) in str(made)


class _Channel:
    """Connects when the test wants it; after it is closed, waiting for it is an error, as in gRPC."""

    def __init__(self) -> None:
        self.state = grpc.ChannelConnectivity.CONNECTING
        self.closing = False
        self.changed = asyncio.Event()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        if self.closing:
            raise grpc.aio.UsageError("Channel is closed.")
        while self.state is last:
            self.changed.clear()
            await self.changed.wait()

    def become(self, state: grpc.ChannelConnectivity) -> None:
        self.state = state
        self.changed.set()


async def test_a_waiting_connect_continues_on_the_channel_with_new_certificates() -> None:
    connection = EtcdConnection(EtcdLocation(("etcd:2379",), tls=False), MetadataSettings(), MetadataStats())
    old, new = _Channel(), _Channel()
    connection._channels = cast(Any, [old])
    connecting = asyncio.ensure_future(connection._connect(0, 10))
    await asyncio.sleep(0)
    connection._channels, old.closing = cast(Any, [new]), True
    new.state = grpc.ChannelConnectivity.IDLE
    old.become(grpc.ChannelConnectivity.IDLE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    new.become(grpc.ChannelConnectivity.READY)
    assert await connecting
