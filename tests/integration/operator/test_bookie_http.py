"""What the operator asks bookies and auto-recovery, of real ones that run with the arguments and files of its pods."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import jwt
import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.errors import UnreachableError
from quire_operator.plan.observation import ObservedCluster
from tests.support.etcd_server import EtcdServer
from tests.support.kube_resources import bookie
from tests.support.ports import free_port
from tests.support.quire_pods import (
    HOST,
    READY_TIMEOUT_S,
    quire,
    start_of_a_bookie,
    start_of_auto_recovery,
    until_well,
)

pytestmark = pytest.mark.slow


async def with_an_auditor(http: BookieHttp) -> ObservedCluster:
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


def tokens_in(folder: Path) -> dict[str, Path]:
    """The files of a pool's Secret, as they are mounted."""
    key = b"k" * 32
    roles = {"operator.token": "quire-operator", "bookie.token": "quire-bookie", "broker.token": "quire-broker"}
    found = {"token.key": folder / "token.key"}
    found["token.key"].write_bytes(key)
    for name, role in roles.items():
        found[name] = folder / name
        found[name].write_text(jwt.encode({"sub": role}, key, "HS256"))
    return found


async def test_pods_of_a_pool_with_authentication_answer_the_operators_token_alone(
    etcd_server: EtcdServer, tmp_path: Path
) -> None:
    manifest = bookie(metadata={"endpoints": [etcd_server.endpoint]}, authentication={"tokenKeySecret": "tokens"})
    resource = Bookie.model_validate(manifest)
    files = tokens_in(tmp_path)
    key, own = f"tokenSecretKey=file://{files['token.key']}", f"file://{files['bookie.token']}"
    http_port, recovery_port = free_port(), free_port()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        start = start_of_a_bookie(resource, tmp_path, http_port)
        await stack.enter_async_context(quire([*start, "--set", key, "--set", f"clientAuthParameters={own}"]))
        await until_well(session, http_port)
        start = start_of_auto_recovery(resource, tmp_path, recovery_port)
        start += ["--set", key, "--set", f"bookkeeperClientAuthenticationParameters={own}"]
        await stack.enter_async_context(quire(start))
        await until_well(session, recovery_port)
        of_bookie, of_recovery = BookieHttp(session, http_port), BookieHttp(session, recovery_port)
        for token in (None, "no.good.token"):
            for http in (of_bookie, of_recovery):
                http.set_trust("ns/pool", [HOST], {}, token)
                with pytest.raises(UnreachableError, match="refused the operator"):
                    await http.addresses(HOST)
        for http in (of_bookie, of_recovery):
            http.set_trust("ns/pool", [HOST], {}, files["broker.token"].read_text())
        (bookie_id,) = await of_bookie.addresses(HOST)
        for http in (of_bookie, of_recovery):
            with pytest.raises(UnreachableError, match="may not make changes"):
                await http.set_lost_bookie_delay(HOST, 45)
            http.set_trust("ns/pool", [HOST], {}, files["operator.token"].read_text())
            await http.set_lost_bookie_delay(HOST, 45)
        assert (await of_bookie.bookie(HOST, bookie_id)).writable
        assert (await with_an_auditor(of_recovery)).known == {bookie_id}
        # Auto-recovery sets the bookie read-only over HTTP, with the token of the role quire-bookie.
        await of_recovery.decommission(HOST, bookie_id)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if not (await of_bookie.bookie(HOST, bookie_id)).writable:
                    break
                await asyncio.sleep(0.05)
