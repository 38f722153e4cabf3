"""Bookies that require tokens, one of which runs auto-recovery, configured as by an operator."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.cli.client_security_settings import own_client_security_settings
from quire_bookie.cli.security_settings import security_settings
from quire_bookie.cli.serve_autorecovery import start_beside
from quire_bookie.client import LedgerClient
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import load
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import LedgerError
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import EntryId
from quire_bookie.settings.client import ClientSettings
from tests.support.bookie_world import SETTINGS, BookieWorld

SECRET = b"a secret that must never appear in a log"


def config(folder: Path) -> BookieConfig:
    """Return the configuration of the bookies."""
    (folder / "token").write_text(jwt.encode({"sub": "bookies"}, SECRET, "HS256"))
    keys = {
        "bookieAuthProviderFactoryClass": "token",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
        "autoRecoveryDaemonEnabled": "true",
        "lostBookieRecoveryDelay": "0",
        "clientAuthProviderFactoryClass": "token",
        "clientAuthParameters": f"file://{folder}/token",
    }
    assigned: dict[str, Any] = {str(BookieConfig.field_of(key)): value for key, value in keys.items()}
    return load(BookieConfig, flags={}, assigned=assigned, environment={}).config


@contextlib.asynccontextmanager
async def three_bookies(configured: BookieConfig) -> AsyncIterator[list[BookieWorld]]:
    """Run three bookies in one cluster."""
    first = BookieWorld(settings=replace(SETTINGS, security=security_settings(configured)))
    worlds = [first, *(BookieWorld(metadata=first.metadata, settings=first.settings) for _ in range(2))]
    try:
        for world in worlds:
            await world.start()
        yield worlds
    finally:
        for world in worlds:
            await world.stop()


async def test_auto_recovery_in_a_bookies_process_repairs_on_bookies_that_require_tokens(tmp_path: Path) -> None:
    configured = config(tmp_path)
    own = configured.part(ClientSettings, security=own_client_security_settings(configured))
    async with three_bookies(configured) as worlds:
        store = worlds[0].session
        assert store is not None
        stranger = await LedgerClient.open(store, ClientSettings(), clock=SystemClock(), chance=SystemChance())
        with pytest.raises(LedgerError):
            writer = await stranger.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
            await writer.append(b"without a token")
        await stranger.close()
        client = await LedgerClient.open(store, own, clock=SystemClock(), chance=SystemChance())
        names = [world.running.bookie_id for world in worlds if world.running is not None]
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, bookies=names[1:])
        for entry in range(20):
            await writer.append(b"entry %d" % entry)
        await writer.close()
        await worlds[2].stop()
        recovery = await start_beside(configured, store, names[0])
        marks = UnderReplication(store, SystemClock())
        await marks.mark(writer.ledger_id, [names[2]])
        async with asyncio.timeout(30):
            while await marks.read(writer.ledger_id) is not None:
                assert not recovery.failed.done()
                await asyncio.sleep(0.01)
        assert recovery.stats.replicas_replaced == 1 and recovery.stats.entries_copied == 20
        await recovery.stop()
        await worlds[1].stop()  # the remaining bookies have only the copies
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        assert reader.metadata.segments[0].ensemble == (names[1], names[0])
        found = await reader.read(EntryId(0), EntryId(19))
        assert [bytes(one) for one in found] == [b"entry %d" % entry for entry in range(20)]
        await client.close()


@pytest.mark.parametrize("with_token", [True, False])
async def test_the_admin_server_queries_secured_bookies_with_its_own_token(tmp_path: Path, with_token: bool) -> None:
    configured = config(tmp_path)
    own = configured.part(ClientSettings, security=own_client_security_settings(configured)) if with_token else None
    async with three_bookies(configured) as worlds:
        store, running = worlds[0].session, worlds[0].running
        assert store is not None and running is not None
        web = BookieWeb(store, worlds[0].disk, {}, clock=SystemClock(), chance=SystemChance(), client_settings=own)
        listening = listen("127.0.0.1", 0)
        await web.open(listening)
        web.serve(running)
        url = f"http://127.0.0.1:{port_of(listening)}/api/v1/bookie/list_bookie_info"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            said = await answer.json()
        await web.close()
        names = [str(world.running.bookie_id) for world in worlds if world.running is not None]
        assert said.keys() == {*names, "ClusterInfo"}
        for name in names:
            assert ("Free: " in said[name]) is with_token, said
