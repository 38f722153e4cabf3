"""`quire bookie start` as a process, told to stop before it serves: it ends with code 0, and nothing is lost."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.metadata import layout
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import BookieId, LedgerId
from tests.integration.test_bookie_kill import check, write_until
from tests.support.bookie_world import RawPeer
from tests.support.etcd_server import EtcdServer
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

RUN = "import sys; from quire_bookie.cli.main import main; sys.argv[0] = 'quire'; main()"
ENDS_WITHIN_S = 30.0
LEDGERS = (LedgerId(1), LedgerId(2))


class Bookie:
    """One folder and port; one process at a time on it."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.log = folder / "log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._endpoint = endpoint
        self._folder = folder

    def start(self) -> None:
        """Start the process, with a log of its own."""
        words = ["bookie", "start", "--metadata", f"etcd://{self._endpoint}", "--data", str(self._folder / "data")]
        words += ["--port", str(self.port), "--advertise", "127.0.0.1", "--log-level", "debug"]
        for setting in ("journalMaxSizeMB=32", "dbStorage_writeCacheMaxSizeMb=24", "diskUsageThreshold=1.0"):
            words += ["--set", setting]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=log, stderr=log)

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until the log has it."""
        assert self.process is not None
        async with asyncio.timeout(60):
            while not (found := re.search(pattern, self.log.read_text())):
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.002)
        return found

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, ENDS_WITHIN_S)

    async def serves(self) -> BookieId:
        """Start it and wait until clients reach it."""
        self.start()
        return BookieId((await self.says(r"bookie (\S+) listens on"))[1])

    async def add(self, confirmed: dict[LedgerId, int], count: int) -> dict[LedgerId, int]:
        """Have so many more adds acknowledged."""
        return await write_until(await RawPeer.connect(self.port), confirmed, count)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)


@pytest.fixture
async def bookie(tmp_path: Path, etcd_server: EtcdServer) -> AsyncIterator[Bookie]:
    """A bookie that is not started yet."""
    bookie = Bookie(tmp_path, etcd_server.endpoint)
    yield bookie
    if bookie.process is not None and bookie.process.poll() is None:
        bookie.process.kill()
        bookie.process.wait()


async def test_a_signal_at_any_step_of_a_start_is_obeyed(bookie: Bookie) -> None:
    await bookie.serves()
    confirmed = await bookie.add(dict.fromkeys(LEDGERS, 0), 400)
    bookie.signal(signal.SIGKILL)
    await bookie.ended()
    for at, step in enumerate(["process", "metadata", "identity", "journals", "storage", "replay"]):
        bookie.start()
        await bookie.says(f"start: {step} took")
        bookie.signal(signal.SIGTERM if at % 2 else signal.SIGINT)
        assert await bookie.ended() == 0, bookie.log.read_text()
    await bookie.serves()
    await check(bookie.port, confirmed)
    bookie.signal(signal.SIGTERM)
    assert await bookie.ended() == 0


async def test_a_second_signal_during_a_start_ends_it_at_once_and_loses_nothing(bookie: Bookie) -> None:
    await bookie.serves()
    confirmed = await bookie.add(dict.fromkeys(LEDGERS, 0), 400)
    bookie.signal(signal.SIGKILL)
    await bookie.ended()
    for step in ("identity", "storage"):
        bookie.start()
        await bookie.says(f"start: {step} took")
        bookie.signal(signal.SIGTERM)
        bookie.signal(signal.SIGTERM)
        assert await bookie.ended() in (0, -signal.SIGTERM)
    await bookie.serves()
    await check(bookie.port, confirmed)


async def test_a_signal_while_another_holds_the_registration_is_obeyed_and_what_was_answered_stays(
    bookie: Bookie, etcd_server: EtcdServer
) -> None:
    path = layout.writable_path(await bookie.serves())
    bookie.signal(signal.SIGTERM)
    assert await bookie.ended() == 0
    metadata = await open_metadata_store(f"etcd://{etcd_server.endpoint}")
    await metadata.put(path, b"another address", ephemeral=True)
    bookie.start()
    await bookie.says("waiting up to")
    confirmed = await bookie.add(dict.fromkeys(LEDGERS, 0), 100)  # whoever knows its address reaches it
    bookie.signal(signal.SIGTERM)
    assert await bookie.ended() == 0
    node = await metadata.get(path)
    assert node is not None and node.value == b"another address"
    await metadata.delete(path)
    await metadata.close()
    await bookie.serves()
    await check(bookie.port, confirmed)


async def test_a_signal_while_etcd_is_away_is_obeyed(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, f"127.0.0.1:{free_port()}")
    bookie.start()
    await bookie.says("start: process took")
    await asyncio.sleep(0.2)  # into the wait for etcd; whenever it comes it is obeyed
    bookie.signal(signal.SIGTERM)
    assert await bookie.ended() == 0
    assert not (tmp_path / "data" / "ledgers").exists()


async def test_a_signal_before_there_is_a_loop_is_obeyed(bookie: Bookie) -> None:
    await bookie.serves()
    bookie.signal(signal.SIGTERM)
    await bookie.ended()
    codes = set()
    for delay_ms in range(20, 400, 40):
        bookie.start()
        await asyncio.sleep(delay_ms / 1000)
        bookie.signal(signal.SIGTERM)
        codes.add(await bookie.ended())
    assert codes <= {0, -signal.SIGTERM}, "the latter before a line of ours ran"
    await bookie.serves()
