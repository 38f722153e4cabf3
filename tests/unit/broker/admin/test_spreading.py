"""Requests for several parts: what happens to the others when one fails as nothing expects, or takes too long."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin import spreading
from quire_broker.admin.context import BROKER
from quire_broker.admin.spreading import on_bundles
from quire_broker.names import parse_namespace
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owner

BUNDLES = [Bundle(parse_namespace("shop/orders"), name) for name in ("0x0_0x1", "0x1_0x2", "0x2_0x3")]


class Owners:
    """All bundles are ours."""

    async def owner_of(self, bundle: Bundle, *, take: bool) -> Owner:
        return Owner(BrokerUrls("pulsar://a:1", "http://a:2"), ours=True)


async def spread(work: Callable[[Bundle], Awaitable[None]]) -> dict[Bundle, Any]:
    async def read() -> bytes:
        return b""

    broker = SimpleNamespace(owners=Owners())
    request: Any = SimpleNamespace(app={BROKER: broker}, method="PUT", headers={}, query={}, read=read)
    return await on_bundles(request, BUNDLES, work, suffix="/unload")


async def test_an_unexpected_error_ends_the_other_parts_before_the_request_fails() -> None:
    began, ended = 0, 0

    async def work(bundle: Bundle) -> None:
        nonlocal began, ended
        began += 1
        if began == len(BUNDLES):
            raise ZeroDivisionError("a defect")
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    with pytest.raises(ZeroDivisionError, match="a defect"):
        await spread(work)
    assert (began, ended) == (3, 2)


async def test_a_timeout_of_the_work_is_told_apart_from_that_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "SPREAD_S", 0.01)

    async def slow(bundle: Bundle) -> None:
        if bundle == BUNDLES[0]:
            raise TimeoutError("no answer of a bookie")
        if bundle == BUNDLES[1]:
            await asyncio.Event().wait()

    with pytest.raises(RefusedError) as raised:
        await spread(slow)
    assert raised.value.status == 503
    assert str(raised.value) == (
        "2 of 3 bundles failed; the others are done: shop/orders/0x0_0x1: its work timed out: "
        "TimeoutError('no answer of a bookie'); shop/orders/0x1_0x2: not done in 0 s"
    )
