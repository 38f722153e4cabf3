"""Tests that a restore of an old backup loses no newer ledger, with real bookies, disks and etcd.

A counter-test shows that without the hold and the note of the restore only quarantine keeps those ledgers.
"""

import asyncio
import json
import shutil
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.client.writing.ledger_writer import LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import MetadataOutdatedError
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.restoration import RESTORATION
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.settings.metadata import MetadataSettings
from tests.integration.test_autorecovery import ROOT, quire
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.ports import free_ports

QUARANTINE = "/api/v1/bookie/gc/quarantine"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
OPTIONS = (
    *(
        "--set",
        "journalMaxSizeMB=32",
        "--set",
        "zkTimeout=2000",
        "--set",
        "gcWaitTime=3600000",
        "--set",
        "diskUsageThreshold=1",
    ),
    *("--advertise", "127.0.0.1"),
)


async def metadata_command(*arguments: str) -> tuple[int, Any]:
    """Run `quire metadata ... --json`; return the exit code and the output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from quire_bookie.cli.main import main; main()",
        "metadata",
        *arguments,
        "--json",
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out else err.decode()


@dataclass
class Bookies:
    """Bookies with fixed ports that use one metadata store at a time."""

    folder: Path
    ports: dict[int, tuple[int, int]] = field(default_factory=dict)
    ids: dict[int, BookieId] = field(default_factory=dict)
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, undo: AsyncExitStack, url: str, number: int, *more: str) -> None:
        if number not in self.ports:
            port, http = free_ports(2)
            self.ports[number] = (port, http)
        port, http = self.ports[number]
        arguments = ("--metadata", url, "--data", f"{self.folder}/b{number}", *OPTIONS, *more)
        self.running[number] = await undo.enter_async_context(
            quire("clients connect to", "bookie", "start", *arguments, "--port", str(port), "--http-port", str(http))
        )

    async def stop(self) -> None:
        for process in self.running.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            await process.wait()
        self.running.clear()

    def ask(self, number: int, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.ports[number][1]}{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data, headers, method="PUT" if data else "GET")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    async def collect(self) -> None:
        """Run garbage collection on each bookie, which removes unnamed ledgers unless something keeps them."""
        for number in self.running:
            self.ask(number, "/api/v1/bookie/gc", {"forceMajor": False})
        for number in self.running:
            while self.ask(number, "/api/v1/bookie/gc")["is_in_force_gc"] == "true":  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def held(self) -> set[int]:
        rows = [self.ask(number, "/api/v1/quire/holdings")["ledgers"] for number in self.running]
        return {row["ledger"] for page in rows for row in page}


def payload(ledger: int, number: int) -> bytes:
    return b"%d/%d " % (ledger, number) * 20


async def write(writer: LedgerWriter, count: int) -> None:
    first = writer.last_add_confirmed + 1
    for number in range(first, first + count):
        await writer.append(payload(writer.ledger_id, number))


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[LedgerClient]:
    store = await open_metadata_store(url, MetadataSettings())
    client = await LedgerClient.open(store, clock=SystemClock(), chance=SystemChance())
    try:
        yield client
    finally:
        await client.close()
        await store.close()


async def assert_all_readable(client: LedgerClient, written: dict[LedgerId, int]) -> None:
    for ledger, count in written.items():
        reader = await client.open_ledger(ledger, recover=True)
        entries = await reader.read(EntryId(0), EntryId(count - 1))
        assert [bytes(entry.payload) for entry in entries] == [payload(ledger, number) for number in range(count)]
        await reader.close()


@dataclass
class Past:
    """The state before the metadata was lost. `written`: the number of acknowledged entries of each ledger."""

    bookies: Bookies
    written: dict[LedgerId, int]
    place: str
    outdated: LedgerId
    orphans: set[LedgerId]


async def _past(undo: AsyncExitStack, url: str, folder: Path) -> Past:
    """Write ledgers, take a backup, then add entries, an ensemble change, a bookie and more ledgers."""
    bookies = Bookies(folder)
    for number in range(3):
        await bookies.start(undo, url, number)
    (folder / "backups").mkdir()
    place = f"file://{folder}/backups"
    async with client_of(url) as client:
        old = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await write(old, 20)
        await old.close()
        growing = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await write(growing, 20)
        code, row = await metadata_command("backup", "--metadata", url, "--to", place)
        assert code == 0 and row["ledgers"] == 2, row
        await bookies.start(undo, url, 3)
        bookies.running[2].kill()
        await bookies.running.pop(2).wait()
        await write(growing, 30)
        await growing.close()
        assert len(growing.metadata.segments) == 2
        await bookies.start(undo, url, 2)
        written = {old.ledger_id: 20, growing.ledger_id: 50}
        orphans = set()
        for _ in range(2):
            new = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            await write(new, 25)
            written[new.ledger_id] = 25
            orphans.add(new.ledger_id)
        await new.close()
    await bookies.stop()
    return Past(bookies, written, place, growing.ledger_id, orphans)


@asynccontextmanager
async def etcd_in(folder: Path) -> AsyncIterator[EtcdServer]:
    folder.mkdir()  # noqa: ASYNC240
    server = EtcdServer(require_etcd(), folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


async def test_restore_of_an_old_backup_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    async with asyncio.timeout(400), AsyncExitStack() as undo:
        async with etcd_in(tmp_path / "first") as lost:
            past = await _past(undo, lost.url, tmp_path)
        etcd = await undo.enter_async_context(etcd_in(tmp_path / "second"))
        at, bookies = ("--metadata", etcd.url), past.bookies
        code, row = await metadata_command("restore", "--from", past.place, *at)
        assert code == 0 and not row["restored"]
        code, row = await metadata_command("restore", "--from", past.place, *at, "--yes")
        assert code == 0 and row["restored"], row
        for number in range(3):
            await bookies.start(undo, etcd.url, number)
        with pytest.raises(AssertionError, match="quire metadata cookies accept") as refused:
            await bookies.start(undo, etcd.url, 3)
        newer = str(refused.value).partition("cookies accept ")[2].partition("`")[0].strip()
        code, row = await metadata_command("cookies", "accept", newer, *at)
        assert code == 0, row
        await bookies.start(undo, etcd.url, 3)
        await bookies.collect()
        assert past.orphans <= bookies.held()
        code, row = await metadata_command("orphans", "list", *at)
        found = {each["ledger"]: each["kind"] for each in row["differences"]}
        assert found == {past.outdated: "outdated"} | dict.fromkeys(past.orphans, "orphan"), row
        assert all(each["bytes"] > 0 and each["lastEntry"] > 0 for each in row["differences"])
        code, row = await metadata_command("release-hold", *at)
        assert code == 1 and "adopt it, or drop it" in row["error"]
        code, row = await metadata_command("orphans", "adopt", *map(str, found), *at)
        assert code == 0, row
        for adopted in row["adopted"]:
            assert adopted["missingEntries"] == 0
            assert adopted["lastEntry"] == past.written[LedgerId(adopted["ledgerId"])] - 1
        code, row = await metadata_command("release-hold", *at)
        assert code == 0 and not row["longIds"] and row["idsAbove"] > max(past.written), row
        await bookies.collect()
        async with client_of(etcd.url) as client:
            await assert_all_readable(client, past.written)
            new = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            assert new.ledger_id > max(past.written)
            await write(new, 5)
            await new.close()
            await assert_all_readable(client, past.written | {new.ledger_id: 5})


async def test_older_copy_of_etcd_is_accepted_under_a_review_without_losses(tmp_path: Path) -> None:
    async with asyncio.timeout(400), AsyncExitStack() as undo:
        etcd = await undo.enter_async_context(etcd_in(tmp_path / "etcd"))
        data, at, bookies = tmp_path / "etcd" / "data", ("--metadata", etcd.url), Bookies(tmp_path)
        for number in range(3):
            await bookies.start(undo, etcd.url, number)
        written = {}

        async def ledger(client: LedgerClient, count: int) -> LedgerId:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            await write(writer, count)
            await writer.close()
            written[writer.ledger_id] = count
            return writer.ledger_id

        async with client_of(etcd.url) as client:
            await ledger(client, 20)
        code, row = await metadata_command("raise-epoch", *at, "--yes")
        assert code == 1 and "the epoch stays 0" in row["error"], "the metadata is not older than any bookie knows"
        etcd.stop()
        shutil.copytree(data, tmp_path / "older")
        etcd.start()
        async with client_of(etcd.url) as client:
            orphans = {await ledger(client, 25) for _ in range(2)}
        for number in range(3):
            while bookies.ask(number, "/api/v1/bookie/gc/metadata")["counter"] < max(orphans):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await bookies.stop()
        etcd.stop()
        shutil.rmtree(data)
        shutil.move(tmp_path / "older", data)
        etcd.start()
        for number in range(3):
            await bookies.start(undo, etcd.url, number)
        async with client_of(etcd.url) as client:
            with pytest.raises(MetadataOutdatedError, match="quire metadata raise-epoch"):
                await ledger(client, 1)
            code, row = await metadata_command("raise-epoch", *at)
            assert code == 0 and not row["raised"] and row["epoch"] == 0, row
            for bookie in row["bookies"]:
                assert bookie["highestLedger"] == bookie["counter"] == max(orphans) and "was at" in bookie["doubt"]
            with pytest.raises(MetadataOutdatedError):
                await ledger(client, 1)
            code, row = await metadata_command("raise-epoch", *at, "--yes")
            assert code == 0 and row["raised"] and row["newEpoch"] > 0, row
            code, row = await metadata_command("raise-epoch", *at, "--yes")
            assert code == 1 and "under review" in row["error"]
            assert await ledger(client, 5) > 1 << 32, "new ledgers take ids that no bookie can hold"
        await bookies.collect()
        assert orphans <= bookies.held()
        code, row = await metadata_command("orphans", "list", *at)
        assert {each["ledger"] for each in row["differences"]} == orphans, row
        code, row = await metadata_command("release-hold", *at)
        assert code == 1 and "adopt it, or drop it" in row["error"]
        code, row = await metadata_command("orphans", "adopt", "--all", *at)
        assert code == 0, row
        code, row = await metadata_command("release-hold", *at)
        assert code == 0, row
        await bookies.collect()
        async with client_of(etcd.url) as client:
            await ledger(client, 5)
            assert len(written) == 5, "no id is used twice"
            await assert_all_readable(client, written)


async def test_without_hold_and_note_only_quarantine_keeps_newer_ledgers(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(400), AsyncExitStack() as undo:
        async with etcd_in(tmp_path / "first") as lost:
            past = await _past(undo, lost.url, tmp_path)
        etcd = await undo.enter_async_context(etcd_in(tmp_path / "second"))
        code, _ = await metadata_command("restore", "--from", past.place, "--metadata", etcd.url, "--yes")
        assert code == 0
        store = await open_metadata_store(etcd.url, MetadataSettings())
        await store.delete(HOLD_PATH)
        await store.delete(RESTORATION)
        await store.close()
        bookies = past.bookies
        for number in range(3):
            await bookies.start(undo, etcd.url, number)
        await bookies.collect()
        assert past.orphans <= bookies.held()
        kept, lost_one = sorted(past.orphans)
        for number in bookies.running:
            rows = {row["ledger"]: row["state"] for row in bookies.ask(number, QUARANTINE)["ledgers"]}
            assert set(rows) <= past.orphans and set(rows.values()) <= {"quarantined"}
            if kept in rows:
                bookies.ask(number, "/api/v1/bookie/gc/undelete", {"ledgers": [kept]})
        await bookies.stop()
        for number in range(3):
            await bookies.start(undo, etcd.url, number, "--set", "gcQuarantineSeconds=0")
        await bookies.collect()
        assert {kept, lost_one} & bookies.held() == {kept}
