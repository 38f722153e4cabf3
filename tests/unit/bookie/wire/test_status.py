"""Tests the table of statuses."""

import pytest

from quire_bookie.errors import (
    DamagedError,
    LedgerFencedError,
    NoSuchEntryError,
    TooManyRequestsError,
    UnknownLedgerStateError,
)
from quire_bookie.wire.status import V2_CODES, V3_CODES, Status, error_of, status_of, status_of_v2, status_of_v3

NAMED = {
    "EOK": (0, 0),
    "ENOLEDGER": (1, 402),
    "ENOENTRY": (2, 403),
    "EBADREQ": (100, 404),
    "EIO": (101, 501),
    "EUA": (102, 502),
    "EBADVERSION": (103, 503),
    "EFENCED": (104, 504),
    "EREADONLY": (105, 505),
    "ETOOMANYREQUESTS": (106, 506),
}


@pytest.mark.parametrize("name", NAMED)
def test_codes_match_the_protocol_in_both_directions(name: str) -> None:
    status = Status(name)
    assert (V2_CODES[status], V3_CODES[status]) == NAMED[name]
    assert status_of_v2(NAMED[name][0]) is status_of_v3(NAMED[name][1]) is status


def test_limbo_is_never_sent_over_v2_because_the_stock_client_fails_on_it() -> None:
    assert V2_CODES[Status.UNKNOWN_LEDGER_STATE] == V2_CODES[Status.IO_ERROR]
    assert V3_CODES[Status.UNKNOWN_LEDGER_STATE] == 507
    assert status_of_v2(107) is Status.UNKNOWN_LEDGER_STATE


def test_an_unknown_code_is_an_io_error() -> None:
    assert status_of_v2(999) is status_of_v3(999) is Status.IO_ERROR


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.OK, Status.BAD_VERSION)])
def test_a_status_and_its_error_map_to_each_other(status: Status) -> None:
    error = error_of(status, "entry 3 of ledger 4")
    assert status_of(error) is status or status_of(error) is Status.BAD_REQUEST
    assert "entry 3 of ledger 4" in str(error)


def test_errors_map_to_the_status_that_a_client_can_act_on() -> None:
    assert status_of(LedgerFencedError()) is Status.FENCED
    assert status_of(NoSuchEntryError()) is Status.NO_ENTRY
    assert status_of(TooManyRequestsError()) is Status.TOO_MANY_REQUESTS
    assert status_of(UnknownLedgerStateError()) is Status.UNKNOWN_LEDGER_STATE
    assert status_of(DamagedError("log", 4, "bits")) is Status.IO_ERROR
    assert status_of(OSError()) is Status.IO_ERROR
