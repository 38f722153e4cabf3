"""A bookie is decommissioned by the command line, with real processes, disks and etcd; then its disk is thrown away."""

import asyncio
import shutil
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire_bookie.cli.commands import EXIT_MISSING
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import EntryId
from quire_bookie.settings.metadata import MetadataSettings
from tests.integration.test_autorecovery import ROOT, quire, started_bookies
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.ports import free_port

pytestmark = pytest.mark.slow


async def command(*arguments: str) -> tuple[int, str]:
    """Exit code and everything that a `quire` command printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from quire_bookie.cli.main import main; main()",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_a_bookie_is_decommissioned_and_its_disk_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(require_etcd(), tmp_path / "etcd")
    etcd.start()
    try:
        await asyncio.wait_for(_scenario(etcd.url, tmp_path), 200)
    finally:
        etcd.stop()


async def _scenario(url: str, folder: Path) -> None:
    async with AsyncExitStack() as undo:
        store = await open_metadata_store(url, MetadataSettings())
        undo.push_async_callback(store.close)
        bookies = await started_bookies(undo, store, url, folder, "--http-port", "0")
        client = await LedgerClient.open(store, clock=SystemClock(), chance=SystemChance())
        undo.push_async_callback(client.close)
        first, second, third, spare = bookies
        ledgers = []
        for _ in range(5):
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum=3, ack_quorum=2, bookies=[first, second, third]
            )
            for number in range(100):
                await writer.append(b"%d" % number * 100)
            ledgers.append(writer)
        for writer in ledgers[1:]:
            await writer.close()
        port = free_port()
        http = f"http://127.0.0.1:{port}"
        recovery = ("--metadata", url, "--name", "ar", "--http-port", str(port))
        grace = (
            "--set",
            "openLedgerRereplicationGracePeriod=2000",
            "--set",
            "lockReleaseOfFailedLedgerGracePeriod=2000",
        )
        died = await undo.enter_async_context(quire("runs as ar", "autorecovery", *recovery, *grace))
        code, told = await command("cluster", "decommission", first, "--no-wait", "--http", http)
        assert code == 0, told
        died.kill()  # at whatever step it was; another goes on
        await died.wait()
        await undo.enter_async_context(quire("runs as ar", "autorecovery", *recovery, *grace))
        code, told = await command("cluster", "decommission", first, "--http", http)
        assert code == 0 and "copied to others" in told and "stop its process" in told, told
        for writer in ledgers:
            metadata = await client.read_metadata(writer.ledger_id)
            assert all(first not in segment.ensemble for segment in metadata.segments)
        bookies[first].send_signal(signal.SIGTERM)
        assert await bookies[first].wait() == 0
        shutil.rmtree(folder / "b0")
        while await Cookies(store).read(first) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        code, told = await command("cluster", "decommission", first, "--http", http)
        assert code == EXIT_MISSING and "is decommissioned already or the id is wrong" in told, told
        for writer in ledgers:
            code, told = await command("ledger", "check", str(writer.ledger_id), "--http", http)
            assert code == 0 and "every replica is intact" in told, told
        reader = await client.open_ledger(ledgers[0].ledger_id, recover=False)
        entries = await reader.read(EntryId(0), EntryId(99))
        assert [bytes(entry.payload) for entry in entries] == [b"%d" % number * 100 for number in range(100)]
        assert spare in reader.metadata.segments[0].ensemble
