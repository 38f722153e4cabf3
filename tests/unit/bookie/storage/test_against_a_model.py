"""The storage compared with a dict: any order of runs, flushes, restarts, deletions and reads."""

import asyncio
import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from tests.unit.bookie.storage.store import SMALL, Store, body_of, open_store, run_of

TINY = dataclasses.replace(SMALL, write_cache_bytes=128 * 1024, read_cache_bytes=20_000, ledger_states_max=2)
LEDGERS = 4

puts = st.tuples(
    st.just("put"), st.integers(0, LEDGERS - 1), st.integers(0, 700), st.integers(1, 80), st.sampled_from([1, 40, 3000])
)
stripes = st.tuples(
    st.just("stripe"), st.integers(0, LEDGERS - 1), st.integers(0, 700), st.integers(2, 3), st.sampled_from([1, 40])
)
others = st.tuples(
    st.sampled_from(["flush", "restart", "read", "read", "delete", "drop", "overlap"]),
    st.integers(0, LEDGERS - 1),
    st.integers(0, 800),
    st.just(0),
    st.just(0),
)
Step = tuple[str, int, int, int, int]
Model = dict[int, dict[int, bytes]]


async def _put(store: Store, model: Model, step: Step, version: int) -> None:
    kind, ledger, first, shape, size = step
    info = await store.ledger(ledger)
    if info.deleted:
        return
    held = model.setdefault(ledger, {})
    if kind == "stripe":
        ids = range(first, first + 60, shape)
        await store.put_ids(ledger, ids, size, version=version)
        held.update({entry: body_of(ledger, entry, size, version=version) for entry in ids})
    else:
        entries = [body_of(ledger, first + at, size, version=version) for at in range(shape)]
        await store.put(ledger, first, entries)
        held.update({first + at: body for at, body in enumerate(entries)})


async def _check(store: Store, model: Model, ledger: int, entry: int) -> None:
    held = model.get(ledger)
    want = None if held is None else held.get(max(held) if entry == NO_ENTRY else entry)
    try:
        assert await store.read(ledger, entry) == want
    except NoSuchLedgerError:
        assert held is None
    except NoSuchEntryError:
        assert held is not None and want is None


async def _run(steps: list[Step]) -> None:
    store = await open_store(settings=TINY)
    model: Model = {}
    for version, step in enumerate(steps):
        kind, ledger, entry = step[:3]
        if kind in ("put", "stripe"):
            await _put(store, model, step, version)
        elif kind == "flush":
            await store.storage.flush()
        elif kind == "restart":
            store = await store.restart(TINY)
        elif kind == "delete":
            await store.storage.delete_ledger(LedgerId(ledger))
            model.pop(ledger, None)
        elif kind == "drop":
            await store.storage.drop_dead_logs()
        elif kind == "overlap":
            flushing = asyncio.ensure_future(store.storage.flush())
            while not flushing.done():
                await _check(store, model, ledger, entry)
                await asyncio.sleep(0)
            await flushing
        else:
            await _check(store, model, ledger, entry)
            await _check(store, model, ledger, NO_ENTRY)
    for ledger in range(LEDGERS):
        for entry in [*range(0, 800, 7), *sorted(model.get(ledger, {}))[:200]]:
            await _check(store, model, ledger, entry)
    assert await store.storage.ledgers() == sorted(model)
    await store.storage.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(puts, stripes, others), max_size=25))
def test_the_storage_behaves_like_a_dict(steps: list[Step]) -> None:
    asyncio.run(_run(steps))


async def test_ten_thousand_ledgers_with_ten_entries_in_one_flush() -> None:
    store = await open_store(settings=dataclasses.replace(SMALL, write_cache_bytes=64 << 20))
    for ledger in range(10_000):
        info = await store.ledger(ledger)
        entries = [body_of(ledger, entry) for entry in range(10)]
        store.storage.put(info, run_of(ledger, 0, entries))
    await store.storage.flush()
    assert store.storage.stats.flushes == 1
    assert store.storage.stats.index_blocks_written == 10_000
    store = await store.restart()
    for ledger in range(0, 10_000, 499):
        found = await store.storage.read_many(LedgerId(ledger), EntryId(0), 20, 1 << 20)
        assert found == [body_of(ledger, entry) for entry in range(10)]
    await store.storage.close()
