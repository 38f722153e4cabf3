"""The admin HTTP port over TLS: clients that trust its authority can read, new certificates need no restart."""

import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.serving import HttpServing
from quire_bookie.cli.http_tls import http_tls
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.env.tls import ServedContext
from quire_bookie.errors import ConfigError
from tests.support.certificates import Authority, Pem


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.trust)


async def served(pem: Pem, trust: str = "") -> tuple[ServedContext, HttpServing, str]:
    config = HttpServerConfig.model_validate(
        {
            "httpServerTlsEnable": True,
            "httpServerKeystorePath": pem.certificate,
            "httpServerKeyPath": pem.key,
            "httpServerTrustStorePath": trust,
        }
    )
    tls = await http_tls(config)
    assert tls is not None
    app = web.Application()

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app.router.add_get("/", hello)
    serving = HttpServing(web.AppRunner(app, access_log=None))
    listening = listen("127.0.0.1", 0)
    await serving.open(listening, tls)
    return tls, serving, f"https://127.0.0.1:{port_of(listening)}/"


def take_over(pem: Pem, other: Pem) -> None:
    """Write another certificate and key to the files of the first."""
    Path(pem.certificate).write_bytes(Path(other.certificate).read_bytes())
    Path(pem.key).write_bytes(Path(other.key).read_bytes())


async def get(url: str, context: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        return await answer.text()


async def test_only_clients_that_trust_the_authority_can_read(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    _, serving, url = await served(authority.issue("http", "127.0.0.1"))
    assert await get(url, trusting(authority)) == "hello"
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await get(url, trusting(stranger))
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(url.replace("https", "http")):
            pass
    await serving.close()


async def test_new_certificates_even_of_another_authority_are_served_from_the_next_handshake(tmp_path: Path) -> None:
    first, second = Authority(tmp_path), Authority(tmp_path, "second")
    pem = first.issue("http", "127.0.0.1")
    tls, serving, url = await served(pem)
    other = second.issue("other", "127.0.0.1")
    take_over(pem, other)
    assert await tls.refresh()
    assert await get(url, trusting(second)) == "hello"
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await get(url, trusting(first))
    await serving.close()


async def test_clients_need_a_certificate_if_trusted_ones_are_configured(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, serving, url = await served(authority.issue("http", "127.0.0.1"), authority.trust)
    with pytest.raises((aiohttp.ClientError, OSError)):
        await get(url, trusting(authority))
    context, own = trusting(authority), authority.issue("client", "client.example")
    context.load_cert_chain(own.certificate, own.key)
    assert await get(url, context) == "hello"
    await serving.close()


async def test_a_missing_certificate_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await served(Pem(str(tmp_path / "nowhere.crt"), str(tmp_path / "nowhere.key")))
    with pytest.raises(ValueError, match="httpServerKeystorePath"):
        HttpServerConfig.model_validate({"httpServerTlsEnable": True})
    assert await http_tls(HttpServerConfig.model_validate({})) is None
