"""The operator connects to pods by IP and verifies name and authority of their certificates.

Pods from before a change of TLS are still reached.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quire_operator.api.bookie import Bookie
from quire_operator.builders.auto_recovery import deployment
from quire_operator.builders.bookie import BookieFacts, stateful_set
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.observing import requires_tls
from quire_operator.cluster.tls_trust import TlsTrust, trusting_none
from quire_operator.errors import UnreachableError
from tests.support.certificates import Authority
from tests.support.kube_resources import bookie

HOST, NAME = "127.0.0.1", "pool-bookie-0.pool-bookie.ns.svc"


@asynccontextmanager
async def pod(tls: ssl.SSLContext | None) -> AsyncIterator[BookieHttp]:
    app = web.Application()

    async def state(_: web.Request) -> web.Response:
        return web.json_response({"running": True})

    async def secured(request: web.Request) -> web.Response:
        good = request.headers.get("Authorization") == "Bearer good"
        return web.json_response({"reason": "show a token"} if not good else {}, status=200 if good else 401)

    app.router.add_get("/secured", secured)

    for path in ("/state", "/api/v1/bookie/state", "/api/v1/bookie/info"):
        app.router.add_get(path, state)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        yield BookieHttp(session, port)
    await runner.cleanup()


def serving(authority: Authority, *names: str) -> ssl.SSLContext:
    pem = authority.issue("pod", *names)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem.certificate, pem.key)
    return context


def judge(authority: Authority) -> TlsTrust:
    return TlsTrust(ssl.create_default_context(cafile=authority.trust), NAME)


async def test_a_pod_with_a_certificate_for_its_name_is_contacted_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with pod(serving(authority, "*.pool-bookie.ns.svc")) as http:
        http.set_trust("ns/pool", [HOST], {HOST: judge(authority)})
        assert (await http.ask(HOST, "/state")).body == {"running": True}


@pytest.mark.parametrize(("signer", "name"), [("stranger", "*.pool-bookie.ns.svc"), ("authority", "other.ns.svc")])
async def test_a_certificate_of_another_authority_or_for_another_name_is_rejected(
    tmp_path: Path, signer: str, name: str
) -> None:
    authorities = {one: Authority(tmp_path, one) for one in ("authority", "stranger")}
    async with pod(serving(authorities[signer], name)) as http:
        http.set_trust("ns/pool", [HOST], {HOST: judge(authorities["authority"])})
        with pytest.raises(UnreachableError, match="ertificate"):
            await http.ask(HOST, "/state")


async def test_pods_from_before_a_change_of_tls_are_contacted_in_their_mode(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with pod(None) as http:
        http.set_trust("ns/pool", [HOST], {HOST: judge(authority)})
        assert (await http.ask(HOST, "/state")).status == 200
    async with pod(serving(authority, NAME)) as http:
        http.set_trust("ns/pool", [HOST], {})
        assert (await http.ask(HOST, "/state")).status == 200


async def test_a_pod_that_must_serve_tls_is_never_contacted_in_plaintext(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with pod(None) as http:
        http.set_trust("ns/pool", [HOST], {HOST: replace(judge(authority), required=True)})
        with pytest.raises(UnreachableError, match="must serve TLS"):
            await http.ask(HOST, "/state")
    async with pod(serving(authority, NAME)) as http:
        http.set_trust("ns/pool", [HOST], {HOST: replace(judge(authority), required=True)})
        assert (await http.ask(HOST, "/state")).status == 200


@pytest.mark.parametrize(("tls", "required"), [(None, False), ({"secretName": "certs"}, True)])
def test_the_spec_of_a_pod_determines_whether_it_must_serve_tls(tls: dict[str, str] | None, required: bool) -> None:
    resource = Bookie.model_validate(bookie(**({} if tls is None else {"tls": tls})))
    made = stateful_set(resource, BookieFacts(1, "quire:1"))["spec"]["template"]
    assert requires_tls(made) is required
    assert requires_tls(deployment(resource, "quire:1")["spec"]["template"]) is required


async def test_a_missing_pod_is_unreachable_in_both_modes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with pod(None) as http:
        pass
    async with aiohttp.ClientSession() as session:
        gone = BookieHttp(session, http._port)
        for judges in ({}, {HOST: judge(authority)}):
            gone.set_trust("ns/pool", [HOST], judges)
            with pytest.raises(UnreachableError):
                await gone.ask(HOST, "/state")


async def test_without_a_known_authority_no_certificate_is_trusted(tmp_path: Path) -> None:
    async with pod(serving(Authority(tmp_path), NAME)) as http:
        http.set_trust("ns/pool", [HOST], {HOST: TlsTrust(trusting_none(), NAME)})
        with pytest.raises(UnreachableError, match="ertificate"):
            await http.ask(HOST, "/state")


async def test_a_response_of_another_program_is_an_error() -> None:
    async with pod(None) as http:
        with pytest.raises(UnreachableError, match="another version"):
            await http.bookie(HOST, "b")


async def test_former_addresses_of_pods_are_removed_unless_another_pool_has_them() -> None:
    async with aiohttp.ClientSession() as session:
        http = BookieHttp(session)
        first, second = (TlsTrust(trusting_none(), name) for name in ("first", "second"))
        http.set_trust("ns/a", ["10.0.0.1", "10.0.0.2"], {"10.0.0.1": first, "10.0.0.2": first})
        http.set_trust("ns/b", ["10.0.0.2"], {"10.0.0.2": second})
        http.set_trust("ns/a", ["10.0.0.3"], {"10.0.0.3": first})
        assert http._trusts == {"10.0.0.2": second, "10.0.0.3": first}
        http.set_trust("ns/a", (), {})
        http.set_trust("ns/b", (), {})
        assert not http._trusts


async def test_the_token_of_a_pool_is_sent_only_to_its_hosts() -> None:
    async with pod(None) as http:
        for token in (None, "bad"):
            http.set_trust("ns/pool", [HOST], {}, token)
            with pytest.raises(UnreachableError, match="refused the operator"):
                await http.ask(HOST, "/secured")
        http.set_trust("ns/pool", [HOST], {}, "good")
        assert (await http.ask(HOST, "/secured")).status == 200
        http.set_trust("ns/pool", ["10.0.0.1"], {}, "good")
        with pytest.raises(UnreachableError, match="refused the operator"):
            await http.ask(HOST, "/secured")
        http.set_trust("ns/pool", [HOST], {}, "good")
        http.set_trust("ns/other", [HOST], {})  # another pool has the address now
        with pytest.raises(UnreachableError, match="refused the operator"):
            await http.ask(HOST, "/secured")


async def test_a_token_is_never_sent_to_a_host_with_an_untrusted_certificate(tmp_path: Path) -> None:
    async with pod(serving(Authority(tmp_path), NAME)) as http:
        http.set_trust("ns/pool", [HOST], {HOST: TlsTrust(trusting_none(), NAME)}, "good")
        with pytest.raises(UnreachableError, match="ertificate"):
            await http.ask(HOST, "/secured")
