"""Rounds over open producers and consumers: which are closed, and that missing answers close none."""

import pytest

from quire_bookie.errors import MetadataFormatError, MetadataUnavailableError, QuireError
from quire_broker.errors import AuthorizationError
from quire_broker.server.permission_watch import PAUSE_AFTER, PermissionWatch


class Open:
    """Records the calls it receives."""

    def __init__(self, error: QuireError | None = None) -> None:
        self.error, self.looks, self.revoked = error, 0, False

    async def require(self) -> None:
        self.looks += 1
        if self.error is not None:
            raise self.error

    async def revoke(self) -> None:
        self.revoked = True


async def round_over(*opened: Open) -> list[bool]:
    await PermissionWatch(lambda: opened, 1.0).round()
    return [one.revoked for one in opened]


async def test_only_clients_no_longer_permitted_are_closed() -> None:
    assert await round_over(Open(), Open(AuthorizationError("no")), Open()) == [False, True, False]


async def test_clients_whose_permissions_cannot_be_read_stay_open() -> None:
    assert await round_over(Open(MetadataUnavailableError("away")), Open()) == [False, False]


async def test_unreadable_policies_of_one_client_keep_no_other_open() -> None:
    refused = Open(AuthorizationError("no"))
    assert await round_over(Open(MetadataFormatError("not JSON")), refused) == [False, True]


async def test_a_defect_in_one_check_keeps_no_other_open() -> None:
    class Broken(Open):
        async def require(self) -> None:
            raise AttributeError("'list' object has no attribute 'get'")

    refused = Open(AuthorizationError("no"))
    assert await round_over(Broken(), refused) == [False, True]


async def test_one_that_cannot_be_closed_does_not_end_the_round() -> None:
    class Stuck(Open):
        async def revoke(self) -> None:
            raise MetadataFormatError("its cursor")

    refused = Open(AuthorizationError("no"))
    assert await round_over(Stuck(AuthorizationError("no")), refused) == [False, True]


@pytest.mark.parametrize("count", [0, 1, PAUSE_AFTER, 3 * PAUSE_AFTER + 1])
async def test_every_client_is_checked_once_per_round(count: int) -> None:
    opened = [Open() for _ in range(count)]
    await round_over(*opened)
    assert [one.looks for one in opened] == [1] * count
