"""What the operator asks bookies and auto-recovery, of real ones that run with the arguments and files of its pods."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.builders import auto_recovery
from quire_operator.builders import bookie as bookie_builder
from quire_operator.builders.bookie import BookieFacts
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.errors import UnreachableError
from quire_operator.plan.seen import ClusterSeen
from tests.support.etcd_server import EtcdServer
from tests.support.kube_resources import bookie
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"
READY_TIMEOUT_S = 60


def arguments(template: dict[str, Any], config: Path) -> list[str]:
    """Of the main container, with a file of ours for the mounted one."""
    found: list[str] = template["spec"]["containers"][0]["args"]
    return [str(config) if part.startswith("/etc/quire") else part for part in found]


def start_of_a_bookie(resource: Bookie, folder: Path, http_port: int) -> list[str]:
    """As its pod would, but for places and ports of this machine."""
    file = folder / "bookie.toml"
    file.write_text(bookie_builder.config_text(resource))
    pod = bookie_builder.stateful_set(resource, BookieFacts(1, "image"))["spec"]["template"]
    here = {
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "journalMaxSizeMB": 32,
        "bookiePort": 0,
        "httpServerPort": http_port,
    }
    found = [HOST if part.startswith("$(POD_NAME)") else part for part in arguments(pod, file)]
    return [*found, *(word for key, value in here.items() for word in ("--set", f"{key}={value}"))]


def start_of_auto_recovery(resource: Bookie, folder: Path, http_port: int) -> list[str]:
    """As its pod would, but for the port."""
    file = folder / "autorecovery.toml"
    file.write_text(auto_recovery.config_text(resource))
    pod = auto_recovery.deployment(resource, "image")["spec"]["template"]
    return [*arguments(pod, file), "--set", f"httpServerPort={http_port}"]


@asynccontextmanager
async def quire(words: list[str]) -> AsyncIterator[None]:
    """A process until it is left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from quire_bookie.cli.main import main; main()", *words),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_well(session: aiohttp.ClientSession, port: int) -> None:
    """The probe of its pod answers."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            try:
                async with session.get(f"http://{HOST}:{port}/healthz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


async def with_an_auditor(http: BookieHttp) -> ClusterSeen:
    """The election takes a moment."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            seen = await http.cluster(HOST, frozenset({"gone-1"}))
            if seen.auditor is not None:
                return seen
            await asyncio.sleep(0.05)


async def test_a_bookie_and_auto_recovery_say_what_the_plan_needs(etcd_server: EtcdServer, tmp_path: Path) -> None:
    manifest = bookie(metadata={"endpoints": [etcd_server.endpoint]}, autoRecovery={"lostBookieDelay": "45s"})
    resource = Bookie.model_validate(manifest)
    http_port, recovery_port = free_port(), free_port()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await stack.enter_async_context(quire(start_of_a_bookie(resource, tmp_path, http_port)))
        await until_well(session, http_port)
        of_bookie, of_recovery = BookieHttp(session, http_port), BookieHttp(session, recovery_port)
        addresses = await of_bookie.addresses(HOST)
        (bookie_id,) = addresses
        assert addresses[bookie_id].startswith(f"{HOST}:")
        state = await of_bookie.bookie(HOST, bookie_id)
        assert state.writable
        assert not state.in_limbo
        assert 0 < state.free_bytes <= state.total_bytes

        await stack.enter_async_context(quire(start_of_auto_recovery(resource, tmp_path, recovery_port)))
        await until_well(session, recovery_port)
        seen = await with_an_auditor(of_recovery)
        assert (seen.under_replicated, seen.unrecoverable) == (0, 0)
        assert seen.known == seen.writable == {bookie_id}, "one that is known by nothing is not known"
        assert seen.recovery_enabled
        assert seen.drains == ()

        await of_recovery.set_lost_bookie_delay(HOST, 45)
        assert await of_bookie.lost_bookie_delay_s(HOST) == 45
        await of_recovery.decommission(HOST, bookie_id)
        drain = (await of_bookie.cluster(HOST, frozenset())).drain_of(bookie_id)
        assert drain is not None
        await of_bookie.cancel_drain(HOST, bookie_id)
        await of_bookie.cancel_drain(HOST, "nobody-1")
        await of_bookie.decommission(HOST, "nobody-1")


async def test_who_does_not_answer_is_unreachable_and_never_empty() -> None:
    async with aiohttp.ClientSession() as session:
        silent = BookieHttp(session, free_port())
        for asking in (silent.addresses(HOST), silent.bookie(HOST, "b-1"), silent.cluster(HOST, frozenset())):
            with pytest.raises(UnreachableError):
                await asking
