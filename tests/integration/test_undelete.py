"""A ledger whose key vanished from a real etcd: kept over a kill -9, undeleted, and read once the key is back."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire_bookie.cli.commands import EXIT_MISSING
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.settings.metadata import MetadataSettings
from tests.integration.test_autorecovery import ROOT
from tests.integration.test_metadata_restore import QUARANTINE, Bookies, assert_all_readable, client_of, etcd_in, write

pytestmark = pytest.mark.timeout(180)


async def bookie_command(*arguments: str) -> tuple[int, str]:
    """Exit code of `quire bookie ...` and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from quire_bookie.cli.main import main; main()",
        "bookie",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_a_key_that_vanished_costs_no_entry(tmp_path: Path) -> None:
    async with asyncio.timeout(150), AsyncExitStack() as undo:
        etcd = await undo.enter_async_context(etcd_in(tmp_path / "etcd"))
        bookies = Bookies(tmp_path)
        await bookies.start(undo, etcd.url, 0, "--set", "gcQuarantineMinSeconds=0")
        store = await open_metadata_store(etcd.url, MetadataSettings())
        undo.push_async_callback(store.close)
        written = {}
        async with client_of(etcd.url) as client:
            for count in (20, 30):
                writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
                await write(writer, count)
                await writer.close()
                written[writer.ledger_id] = count
        vanished = {ledger: await store.get(ledger_path(ledger)) for ledger in written}
        for ledger in written:
            await store.delete(ledger_path(ledger))
        await bookies.collect()
        await bookies.collect()
        bookies.running[0].kill()
        await bookies.running.pop(0).wait()
        await bookies.start(undo, etcd.url, 0)
        rows = {row["ledger"]: row["state"] for row in bookies.ask(0, QUARANTINE)["ledgers"]}
        assert rows == dict.fromkeys(written, "quarantined")

        http = ("--http", f"http://127.0.0.1:{bookies.ports[0][1]}")
        first = min(written)
        code, said = await bookie_command("undelete", str(first), *http)
        assert (code, said.split(";")[0]) == (0, "undeleted ledgers: 1")
        code, said = await bookie_command("undelete", str(max(written) + 1), *http)
        assert code == EXIT_MISSING and "is not in quarantine on this bookie" in said
        await bookies.stop()
        await bookies.start(undo, etcd.url, 0, "--set", "gcQuarantineSeconds=0")
        await bookies.collect()
        assert bookies.held() == {first}, "the other one went at once"
        node = vanished[first]
        assert node is not None
        await store.put(ledger_path(first), node.value)
        await bookies.collect()
        assert bookies.ask(0, QUARANTINE)["ledgers"] == []
        async with client_of(etcd.url) as client:
            await assert_all_readable(client, {first: written[first]})
