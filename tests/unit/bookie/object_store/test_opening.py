"""Folders as object stores, and which URLs are refused. Buckets: `tests/integration/test_backup_object_stores.py`."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.env.file_modes import keep_new_files_private
from quire_bookie.errors import ConfigError, NoSuchEntryError, ObjectMissingError, ObjectStoreError
from quire_bookie.object_store.opening import open_object_store


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:secret@bucket/x",
        "s3://",
        "file://host/folder",
        "file:relative",
        "file:///",
        "http://host/x",
        "s3://bucket/x?key=secret",
        "/folder",
    ],
)
def test_refusal_of_an_invalid_place_hides_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_object_store(url, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket", "az://container/b/c", "file:///folder"])
def test_place_of_each_kind_opens_without_contact(url: str) -> None:
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": "quire", "AZURE_STORAGE_ACCOUNT_KEY": "cXVpcmU="}
    assert open_object_store(url, environment).url == url


def test_environment_and_profile_may_both_give_a_region(tmp_path: Path) -> None:
    profile = tmp_path / "credentials"
    profile.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\nregion = eu-west-1\n")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(profile), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    for more in ({}, {"AWS_REGION": "us-west-2"}):
        assert open_object_store("s3://bucket", environment | more).url == "s3://bucket"


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", "AZURE_ACCOUNT_NAME"])
def test_azure_account_is_read_from_each_usual_variable(name: str) -> None:
    assert (
        open_object_store("az://container", {name: "quire", "AZURE_STORAGE_ACCESS_KEY": "cXVpcmU="}).url
        == "az://container"
    )


def test_azure_place_needs_an_account() -> None:
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_object_store("az://container", {})


async def test_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectStoreError, match="the folder does not exist"):
        await open_object_store(f"file://{tmp_path}/missing", {}).names()


async def test_object_in_parts_is_complete_with_its_size_and_ranges(tmp_path: Path) -> None:
    objects = open_object_store(f"file://{tmp_path}", {})

    async def chunks() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes([number]) * 1000

    await objects.put_stream("a/big", chunks(), part_bytes=7000, parts_at_once=2)
    assert bytes(await objects.get_range("a/big", 999, 1001)) == b"\0\1"
    assert len(await objects.get_range("a/big", 99_990, 200_000)) == 10
    [stored] = [each async for each in objects.stored()]
    assert (stored.name, stored.size_bytes) == ("a/big", 100_000)
    assert stored.modified_ms > 1_700_000_000_000
    with pytest.raises(ObjectMissingError, match="a/none does not exist"):
        await objects.get_range("a/none", 0, 1)


async def test_failed_source_leaves_no_object_and_raises_its_error(tmp_path: Path) -> None:
    objects = open_object_store(f"file://{tmp_path}", {})

    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(10_000)
        raise NoSuchEntryError("entry 7 is gone")

    with pytest.raises(NoSuchEntryError, match="entry 7"):
        await objects.put_stream("big", chunks(), part_bytes=1000, parts_at_once=2)
    assert await objects.get("big") is None


async def test_object_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    objects = open_object_store(f"file://{tmp_path}", {})
    await objects.put("x", b"1")
    with pytest.raises(ObjectStoreError, match="already exists"):
        await objects.put("x", b"2")
    await objects.put("x", b"3", overwrite=True)
    assert await objects.get("x") == b"3"


async def test_only_the_user_of_the_process_can_access_objects_in_a_folder(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keep_new_files_private()
        await open_object_store(f"file://{tmp_path}", {}).put("backups/one", b"content")
    finally:
        os.umask(before)
    modes = {name: oct(os.stat(tmp_path / name).st_mode & 0o777) for name in ("backups", "backups/one")}
    assert modes == {"backups": "0o700", "backups/one": "0o600"}
