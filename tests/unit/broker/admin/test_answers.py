"""Errors as HTTP codes, positions in JSON, checks of policies."""

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from quire_bookie.admin.answers import RefusedError
from quire_bookie.errors import MetadataUnavailableError, NoSuchLedgerError, QuireError, QuorumError
from quire_broker.admin.answers import code_of
from quire_broker.admin.namespaces import STORED_POLICIES, flaw_of_policy
from quire_broker.admin.schemas import one_version
from quire_broker.admin.subscriptions import position_of, reset_to_time, skip
from quire_broker.errors import (
    ConflictError,
    ConsumerBusyError,
    InvalidTopicNameError,
    NotAllowedError,
    NotFoundError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from quire_broker.managed_ledger.errors import ManagedLedgerMissingError, ManagedLedgerTerminatedError
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("x"), 404),
        (TopicNotFoundError("x"), 404),
        (ManagedLedgerMissingError("x"), 404),
        (NoSuchLedgerError("x"), 404),
        (ConflictError("x"), 409),
        (InvalidTopicNameError("x"), 412),
        (NotAllowedError("x"), 412),
        (ConsumerBusyError("x"), 412),
        (ManagedLedgerTerminatedError("x"), 412),
        (ServiceNotReadyError("x"), 503),
        (MetadataUnavailableError("x"), 503),
        (QuorumError("x"), 500),
    ],
)
def test_the_code_of_an_error(error: QuireError, code: int) -> None:
    assert code_of(error) == code


@pytest.mark.parametrize(
    ("value", "position"),
    [
        (None, LATEST),
        ("latest", LATEST),
        ("earliest", EARLIEST),
        ({"ledgerId": 3, "entryId": 4, "partitionIndex": -1}, Position(3, 4)),
        ({"ledgerId": -1, "entryId": -1}, EARLIEST),
        ({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}, LATEST),
    ],
)
def test_positions_are_parsed_from_json(value: Any, position: Position) -> None:
    assert position_of(value) == position


@pytest.mark.parametrize(
    "value",
    [
        "middle",
        5,
        {},
        {"ledgerId": "1", "entryId": 2},
        [1, 2],
        {"ledgerId": True, "entryId": 2},
        {"ledgerId": 1, "entryId": -2},
        {"ledgerId": 2**63, "entryId": 0},
        {"ledgerId": 1, "entryId": 10**400},
    ],
)
def test_invalid_positions_are_refused(value: Any) -> None:
    with pytest.raises(NotAllowedError):
        position_of(value)


@pytest.mark.parametrize("text", ["-1", "9" * 19, "9" * 5000, "x", "1e3"])
async def test_an_invalid_count_is_refused_before_any_change(text: str) -> None:
    request = make_mocked_request("POST", "/", match_info={"count": text, "time_ms": text * 2, "version": text * 2})
    for handler, name in ((skip, "count"), (reset_to_time, "time_ms"), (one_version, "version")):
        with pytest.raises(RefusedError, match=f"{name}=.* is not an integer from") as error:
            await handler(request)
        assert code_of(error.value) == 400


@pytest.mark.parametrize(
    ("policy", "value", "fine"),
    [
        ("deduplication", True, True),
        ("deduplication", 1, False),
        ("persistence", {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}, True),
        ("persistence", {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}, False),
        ("persistence", {"bookkeeperEnsemble": 2}, False),
        ("persistence", None, False),
        ("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 0}, True),
        ("retention", 5, False),
        ("messageTTL", 5, True),
        ("replication", ["c1"], True),
        ("replication", ["c1", "c2"], False),
        ("subscriptionTypesEnabled", ["Shared", "Key_Shared"], True),
        ("subscriptionTypesEnabled", ["Some"], False),
        ("delayedDelivery", {"active": True, "tickTime": 5, "maxDeliveryDelayInMillis": 0}, True),
        ("delayedDelivery", {"active": True, "maxDeliveryDelayInMillis": 5}, False),
        ("maxConsumersPerTopic", -1, False),
    ],
)
def test_policies_are_checked_before_they_are_stored(policy: str, value: Any, fine: bool) -> None:
    assert (flaw_of_policy(STORED_POLICIES[policy], value, "c1") is None) == fine
