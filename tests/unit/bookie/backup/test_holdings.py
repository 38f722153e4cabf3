"""Tests that bookies are asked at the HTTP port that they registered, with TLS where they registered it."""

from dataclasses import replace
from pathlib import Path

import pytest

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.backup.holdings import BookieQuestions, Held
from quire_bookie.cli.http_tls import http_tls
from quire_bookie.client import LedgerClient
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import client_context
from quire_bookie.metadata.restoration import let_return
from quire_bookie.model import BookieId, EntryId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.settings.tls import TlsFiles
from tests.support.bookie_world import SETTINGS, BookieWorld
from tests.support.certificates import Authority


def https(authority: Authority) -> HttpServerConfig:
    """Return the settings of a port that requires client certificates."""
    pem = authority.issue("http", "127.0.0.1")
    return HttpServerConfig.model_validate(
        {
            "httpServerTlsEnable": True,
            "httpServerKeystorePath": pem.certificate,
            "httpServerKeyPath": pem.key,
            "httpServerTrustStorePath": authority.trust,
        }
    )


@pytest.mark.parametrize(("with_tls", "trusted"), [(False, True), (True, True), (True, False)])
async def test_bookie_is_asked_at_its_registered_port(tmp_path: Path, with_tls: bool, trusted: bool) -> None:
    authority = Authority(tmp_path)
    tls = await http_tls(https(authority)) if with_tls else None
    listening = listen("127.0.0.1", 0)
    world = BookieWorld(settings=replace(SETTINGS, http_port=port_of(listening), http_tls=with_tls))
    running = await world.start()
    assert world.session is not None
    web = BookieWeb(world.session, world.disk, {}, clock=SystemClock(), chance=SystemChance())
    await web.open(listening, tls)
    web.serve(running)
    client = await LedgerClient.open(world.session, clock=SystemClock(), chance=SystemChance())
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"x")
    access = await ClusterAccess.open(
        world.session, RecoverySettings(), ClientSettings(), clock=SystemClock(), chance=SystemChance()
    )
    own = authority.issue("own")
    files = TlsFiles(own.certificate, own.key, trust=authority.trust)
    context = client_context(files, check_host_name=True) if trusted else None
    await let_return(world.session, BookieId("accepted"))
    async with BookieQuestions(access, context) as questions:
        found = await questions.holdings()
    assert "not registered" in found.silent.pop(BookieId("accepted")), "it may hold entries that no other bookie does"
    if trusted:
        assert found.of == {running.bookie_id: {writer.ledger_id: Held(EntryId(0), False, False)}}
        assert not found.silent
    else:
        assert not found.of and "certificate" in found.silent[running.bookie_id]
    await access.close()
    await client.close()
    await web.close()
    await world.stop()
