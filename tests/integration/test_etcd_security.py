"""Who we are at a real etcd may change while we are connected: certificates, the authority itself, passwords."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.errors import ConfigError, MetadataUnavailableError
from quire_bookie.metadata.etcd.store import EtcdMetadataStore
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import Event, EventKind, Watch
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.certificates import Authority
from tests.support.etcd_server import EtcdServer, require_etcd

WAIT_S = 30
REFRESH_S = 0.1


async def open_store(url: str, settings: MetadataSettings) -> EtcdMetadataStore:
    store = await open_metadata_store(url, settings)
    assert isinstance(store, EtcdMetadataStore)
    return store


async def next_event(watch: Watch) -> Event:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(watch))


async def renewed(store: EtcdMetadataStore, times: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while store.stats.certificates_renewed < times:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def issue(folder: Path, authority: str) -> None:
    """ca.crt, tls.crt, tls.key, server.crt and server.key of one authority, over those that were there."""
    made = folder / authority
    made.mkdir()
    signer = Authority(made, authority)
    client, server = signer.issue("client", "client.example"), signer.issue("server", "127.0.0.1")
    for source, name in (
        (signer.trust, "ca.crt"),
        (client.certificate, "tls.crt"),
        (client.key, "tls.key"),
        (server.certificate, "server.crt"),
        (server.key, "server.key"),
    ):
        shutil.copy(source, folder / name)


def settings_of(folder: Path) -> MetadataSettings:
    return MetadataSettings(
        ca_path=str(folder / "ca.crt"),
        cert_path=str(folder / "tls.crt"),
        key_path=str(folder / "tls.key"),
        tls_refresh_s=REFRESH_S,
        connect_timeout_s=10,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    issue(folder, "first")
    return folder


@pytest.fixture
def server(tmp_path: Path, files: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    own = ("--cert-file", str(files / "server.crt"), "--key-file", str(files / "server.key"))
    trust = ("--client-cert-auth", "--trusted-ca-file", str(files / "ca.crt"))
    started = EtcdServer(require_etcd(), folder, extra=(*own, *trust), scheme="https")
    started.start()
    yield started
    started.kill()


async def test_a_store_goes_over_to_new_certificates_even_of_another_authority(server: EtcdServer, files: Path) -> None:
    store = await open_store(server.url, settings_of(files))
    watch = await store.watch("/a/")
    await store.put("/a/1", b"", ephemeral=True)
    assert await next_event(watch) == Event(EventKind.CREATED, "/a/1")
    issue(files, "second")
    server.kill()
    await asyncio.to_thread(server.start)  # knows the second authority only
    await renewed(store, 1)
    await store.put("/a/2", b"")
    assert await next_event(watch) == Event(EventKind.CREATED, "/a/2")
    node = await store.get("/a/1")
    assert node is not None and node.owned, "the lease outlives the change"
    await store.close()


async def test_a_watch_and_calls_go_on_when_only_our_certificate_is_renewed(server: EtcdServer, files: Path) -> None:
    store = await open_store(server.url, settings_of(files))
    watch = await store.watch("/a/")
    for number in range(1, 3):
        (files / "tls.crt").write_bytes((files / "tls.crt").read_bytes() + b"\n")
        await renewed(store, number)
        await store.put(f"/a/{number}", b"")
        assert await next_event(watch) == Event(EventKind.CREATED, f"/a/{number}")
    await store.close()


async def test_files_that_cannot_be_used_leave_the_former_in_place(server: EtcdServer, files: Path) -> None:
    store = await open_store(server.url, settings_of(files))
    good = (files / "tls.crt").read_bytes()
    (files / "tls.crt").write_bytes(b"half a certif")
    await asyncio.sleep(5 * REFRESH_S)
    assert store.stats.certificates_renewed == 0
    await store.put("/a", b"")
    (files / "tls.crt").write_bytes(good)
    await renewed(store, 1)
    await store.close()


async def test_a_certificate_that_etcd_does_not_trust_is_refused_within_the_time(
    server: EtcdServer, files: Path
) -> None:
    stranger = Authority(files, "stranger").issue("stranger", "client.example")
    settings = MetadataSettings(
        ca_path=str(files / "ca.crt"), cert_path=stranger.certificate, key_path=stranger.key, connect_timeout_s=1
    )
    with pytest.raises(MetadataUnavailableError):
        await open_metadata_store(server.url, settings)


async def test_the_key_of_another_certificate_is_told_before_anything_connects(files: Path) -> None:
    shutil.copy(files / "server.key", files / "tls.key")
    with pytest.raises(ConfigError, match="key values mismatch"):
        await open_metadata_store("etcd:https://127.0.0.1:1", settings_of(files))


async def test_a_changed_password_is_read_from_its_file_at_the_next_login(
    etcd_server: EtcdServer, tmp_path: Path
) -> None:
    etcd_server.call("auth/user/add", {"name": "root", "password": "first"})
    etcd_server.call("auth/user/grant", {"user": "root", "role": "root"})
    etcd_server.call("auth/enable", {})
    name, password = tmp_path / "username", tmp_path / "password"
    name.write_text("root\n")
    password.write_text("first\n")
    settings = MetadataSettings(username=f"file://{name}", password=f"file://{password}")
    store = await open_store(etcd_server.url, settings)
    answer = etcd_server.call("auth/authenticate", {"name": "root", "password": "first"})
    await asyncio.to_thread(change_password, etcd_server, str(answer["token"]), "second")
    password.write_text("second\n")
    etcd_server.kill()
    await asyncio.to_thread(etcd_server.start)  # forgets all tokens
    assert await store.put("/a", b"") == 0
    await store.close()
    password.unlink()
    gone = MetadataSettings(username="root", password=f"file://{password}", connect_timeout_s=1)
    with pytest.raises(MetadataUnavailableError, match="password"):
        await open_metadata_store(etcd_server.url, gone)


def change_password(server: EtcdServer, token: str, password: str) -> None:
    import json
    import urllib.request

    request = urllib.request.Request(
        f"http://{server.endpoint}/v3/auth/user/changepw",
        json.dumps({"name": "root", "password": password}).encode(),
        {"Content-Type": "application/json", "Authorization": token},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()
