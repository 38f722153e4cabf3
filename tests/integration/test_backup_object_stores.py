"""Tests of backups in a real S3 service, and of the error texts of its failures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.cli.main import run
from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import ObjectStoreError
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.etcd_server import EtcdServer
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, require_s3

pytestmark = pytest.mark.slow
URL = "s3://backups/clusters/one"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(require_s3(), tmp_path)
    server.start()
    server.make_bucket("backups")
    yield server
    server.stop()


async def test_objects_of_a_bucket_are_written_once_listed_read_and_deleted(s3: S3Server) -> None:
    objects = open_object_store(URL, s3.environment)
    await objects.put("a/x", b"first")
    await objects.put("b/y", b"")
    assert await objects.names() == ["a/x", "b/y"]
    assert await objects.names("a") == ["a/x"]
    assert await objects.get("a/x") == b"first"
    assert await objects.get("a/z") is None
    await objects.delete("a/x")
    await objects.delete("a/x")
    assert await objects.names() == ["b/y"]
    assert (s3.buckets / "backups" / "clusters" / "one" / "b" / "y").exists()


def profile(s3: S3Server, home: Path) -> dict[str, str]:
    (home / ".aws").mkdir()
    keys = f"[other]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    (home / ".aws" / "credentials").write_text(keys)
    return {"HOME": str(home), "AWS_PROFILE": "other", "AWS_ENDPOINT_URL": s3.endpoint}


async def test_credentials_come_from_a_profile(s3: S3Server, tmp_path: Path) -> None:
    objects = open_object_store(URL, profile(s3, tmp_path))
    await objects.put("x", b"1")
    assert await objects.names() == ["x"]


async def error_of(objects: ObjectStore) -> str:
    """Return the text of the error that the object store raises."""
    with pytest.raises(ObjectStoreError) as caught:
        await objects.put("x", b"1")
    text = str(caught.value)
    assert "\n" not in text and "<" not in text
    return text


async def test_failures_are_one_clear_line_without_credentials(s3: S3Server) -> None:
    wrong = s3.environment | {"AWS_SECRET_ACCESS_KEY": "mistyped-secret"}
    text = await error_of(open_object_store(URL, wrong))
    assert "credentials are not accepted" in text and "mistyped-secret" not in text
    unknown = s3.environment | {"AWS_ACCESS_KEY_ID": "somebody"}
    assert "credentials are not accepted" in await error_of(open_object_store(URL, unknown))
    assert "the bucket does not exist" in await error_of(open_object_store("s3://missing/x", s3.environment))
    away = s3.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    assert "cannot be reached" in await error_of(open_object_store(URL, away))
    with pytest.raises(ObjectStoreError, match="the bucket does not exist"):
        await open_object_store("s3://missing/x", s3.environment).names()


async def test_commands_back_up_list_and_verify(
    s3: S3Server, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await open_metadata_store(etcd_server.url, MetadataSettings())
    instance = await initialise(store, SystemChance())
    for number in range(2500):
        await store.put(f"/admin/n{number:04d}", b"x" * 100)
    await store.put("/loadbalance/brokers/b", b"session", ephemeral=True)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)

    async def command(*arguments: str) -> tuple[int, str]:
        import asyncio

        code = await asyncio.to_thread(run, ["metadata", *arguments])
        return code, capsys.readouterr().out

    taken = []
    for _ in range(3):
        code, out = await command("backup", "--metadata", etcd_server.url, "--to", URL, "--keep", "2", "--json")
        taken.append(json.loads(out))
        assert code == 0 and taken[-1]["cluster"] == instance and taken[-1]["nodes"] == 2504
    assert taken[2]["removed"] == [taken[0]["name"]] and taken[0]["leftOut"] == 1
    assert taken[0]["revision"] > 2500
    code, out = await command("list", "--from", URL, "--json")
    assert code == 0 and {row["name"] for row in json.loads(out)} == {row["name"] for row in taken[1:]}
    code, out = await command("verify", "--from", URL)
    assert code == 0 and "is intact: 2504 nodes" in out
    part = next((s3.buckets / "backups" / "clusters" / "one" / taken[1]["name"]).glob("part-*"))
    part.write_bytes(part.read_bytes()[:-5])
    code, out = await command("verify", "--from", URL, "--backup", taken[1]["name"], "--json")
    assert code == 1 and "does not match its checksum" in json.loads(out)["error"]
    await store.close()
