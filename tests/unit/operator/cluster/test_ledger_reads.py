"""One read serves all resources that declare a part of a namespace; silence is remembered, too."""

import asyncio
from typing import Any

import pytest

from quire_operator.cluster.broker_rest import BrokerEndpoint
from quire_operator.cluster.ledger_reads import KEPT_S, SILENT_KEPT_S, LedgerReads
from quire_operator.errors import RefusedError

KEY = ("uid", "namespace shop/orders")


class Broker:
    """Answers with a number that rises, or not at all; waits for `may_answer`."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def read(self) -> tuple[int, BrokerEndpoint] | None:
        self.asked += 1
        asked = self.asked
        await self.may_answer.wait()
        return None if self.silent else (asked, BrokerEndpoint("10.0.0.1"))


async def answer(reads: LedgerReads, broker: Broker, now_s: float, key: tuple[str, str] = KEY) -> Any:
    found = await reads.get(key, now_s, broker.read)
    return None if found is None else found[0]


async def test_an_answer_is_shared_until_it_is_old_or_something_was_changed() -> None:
    reads, broker = LedgerReads(), Broker()
    assert [await answer(reads, broker, now_s) for now_s in (0.0, KEPT_S - 1, KEPT_S)] == [1, 1, 2]
    reads.forget("another")
    assert await answer(reads, broker, KEPT_S) == 2
    reads.forget("uid")
    assert await answer(reads, broker, KEPT_S) == 3


async def test_resources_that_ask_at_once_share_one_read() -> None:
    reads, broker = LedgerReads(), Broker()
    broker.may_answer.clear()
    asking = [asyncio.create_task(answer(reads, broker, 0.0)) for _ in range(5)]
    await asyncio.sleep(0)
    broker.may_answer.set()
    assert [await one for one in asking] == [1] * 5
    assert broker.asked == 1


async def test_silence_is_remembered_for_longer_than_an_answer() -> None:
    reads, broker = LedgerReads(), Broker()
    broker.silent = True
    assert [await answer(reads, broker, now_s) for now_s in (0.0, SILENT_KEPT_S - 1)] == [None, None]
    assert broker.asked == 1
    broker.silent = False
    assert await answer(reads, broker, SILENT_KEPT_S) == 2


async def test_an_error_is_not_remembered_and_old_reads_are_dropped() -> None:
    reads, broker = LedgerReads(), Broker()

    async def refuse() -> tuple[int, BrokerEndpoint] | None:
        raise RefusedError("no")

    with pytest.raises(RefusedError):
        await reads.get(KEY, 0.0, refuse)
    assert await answer(reads, broker, 0.0) == 1
    for number in range(20):
        await answer(reads, broker, 100.0 * number, ("uid", f"namespace {number}"))
    assert len(reads) == 1
