"""What a failed call means: the table on which every *unknown* depends."""

import grpc
import pytest

from quire_bookie.errors import MetadataError
from quire_bookie.metadata.etcd.connection import (
    CompactedError,
    Fault,
    LeaseGoneError,
    TooLargeError,
    classify,
    refusal,
)

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
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", MetadataError),
        (Code.INVALID_ARGUMENT, "", MetadataError),
    ],
)
def test_each_refusal_has_its_error_with_the_servers_words(
    code: grpc.StatusCode, details: str, error: type[MetadataError]
) -> None:
    made = refusal(code, details)
    assert type(made) is error
    assert (details or code.name) in str(made)
