"""When the process of a bookie ends, and with which exit code."""

import asyncio

from quire_bookie.cli.commands import EXIT_FAILED
from quire_bookie.cli.serve_bookie import _until_end
from quire_bookie.errors import JournalPoisonedError


async def test_a_signal_ends_it_with_code_0() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    ended = asyncio.ensure_future(_until_end(failed, 30.0, stop))
    await asyncio.sleep(0)
    assert not ended.done()
    stop.set()
    assert await ended == 0
    assert not failed.done(), "the owner of the bookie may still set it"


async def test_a_failed_journal_ends_it_with_an_error_after_the_time_for_reads() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    failed.set_result(JournalPoisonedError("no sync"))
    assert await _until_end(failed, 0.0, asyncio.Event()) == EXIT_FAILED


async def test_a_signal_shortens_the_time_for_reads_and_the_code_stays_an_error() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    failed.set_result(JournalPoisonedError("no sync"))
    stop = asyncio.Event()
    ended = asyncio.ensure_future(_until_end(failed, 1e6, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await ended == EXIT_FAILED
