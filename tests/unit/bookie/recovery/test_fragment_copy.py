"""The copies of a fragment that are under way together."""

import asyncio
import gc
from typing import Any

import pytest

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.recovery.fragment_copy import _reap


async def test_copies_that_fail_in_one_step_are_all_taken_note_of() -> None:
    async def fail(bookie: str) -> None:
        raise BookieUnavailableError(bookie)

    loop = asyncio.get_running_loop()
    forgotten: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: forgotten.append(context))
    under_way = {loop.create_task(fail(bookie)) for bookie in ("b1", "b2", "b3")}
    with pytest.raises(BookieUnavailableError):
        await _reap(under_way)
    assert under_way == set()
    gc.collect()
    await asyncio.sleep(0)
    assert forgotten == []
