"""Auto-recovery with real processes, disks and etcd: a bookie dies for good, and its replicas come up elsewhere."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.etcd_server import EtcdServer, require_etcd

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
BOOKIE = (
    *("--set", "journalMaxSizeMB=32", "--set", "zkTimeout=3000", "--set", "diskUsageThreshold=1"),
    *("--advertise", "127.0.0.1", "--port", "0"),
)


@asynccontextmanager
async def quire(ready: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A `quire` process that has logged `ready`; killed when left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from quire_bookie.cli.main import main; main()",
        *arguments,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines = process.stderr
    log: list[str] = []

    async def wait() -> None:
        while line := (await lines.readline()).decode():
            log.append(line)
            if re.search(ready, line):
                return
        raise AssertionError("".join(log))

    draining = None
    try:
        await asyncio.wait_for(wait(), 60)
        draining = asyncio.ensure_future(lines.read())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if draining is not None:
            await draining


async def started_bookies(
    undo: AsyncExitStack, store: MetadataStore, url: str, folder: Path, *options: str
) -> dict[BookieId, asyncio.subprocess.Process]:
    """Four bookies with their data in `b0` to `b3` of `folder`, in this order; `undo` ends them."""
    bookies: dict[BookieId, asyncio.subprocess.Process] = {}
    for number in range(4):
        arguments = ("--metadata", url, "--data", f"{folder}/b{number}", *options, *BOOKIE)
        process = await undo.enter_async_context(quire("clients connect to", "bookie", "start", *arguments))
        (bookie,) = await writable_bookies(store) - set(bookies)
        bookies[bookie] = process
    return bookies


async def test_the_replicas_of_a_dead_bookie_come_up_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), tmp_path / "etcd")
    etcd.start()
    try:
        await asyncio.wait_for(_scenario(etcd.url, tmp_path), 150)
    finally:
        etcd.stop()


async def _scenario(url: str, folder: Path) -> None:
    async with AsyncExitStack() as undo:
        store = await open_metadata_store(url, MetadataSettings())
        undo.push_async_callback(store.close)
        bookies = await started_bookies(undo, store, url, folder)
        recovery = ("autorecovery", "--metadata", url, "--name", "ar", "--set", "lostBookieRecoveryDelay=600")
        process = await undo.enter_async_context(quire("runs as ar", *recovery))
        client = await LedgerClient.open(store, clock=SystemClock(), chance=SystemChance())
        undo.push_async_callback(client.close)
        before = list(bookies)[:3]
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, bookies=before)
        for number in range(200):
            await writer.append(b"%d" % number * 100)
        await writer.close()
        bookies[before[0]].kill()
        while before[0] in await writable_bookies(store):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await RecoveryControls(store).set_lost_bookie_delay_s(600)  # a person's word: it does not come back
        after: tuple[BookieId, ...] = tuple(before)
        while before[0] in after:
            await asyncio.sleep(0.2)
            after = (await client.read_metadata(writer.ledger_id)).segments[0].ensemble
        assert after == (list(bookies)[3], *before[1:])
        marks = UnderReplication(store, SystemClock())
        while await marks.read(writer.ledger_id) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        entries = await reader.read(EntryId(0), EntryId(199))
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % number * 100 for number in range(200)]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert await store.get("/ledgers/underreplication/leader") is None


async def writable_bookies(store: MetadataStore) -> set[BookieId]:
    """Those that are registered."""
    registry = await BookieRegistry.open(store)
    try:
        return set(registry.writable)
    finally:
        await registry.close()
