"""Where backups are kept: a folder or a bucket, by its URL. The only module that knows `obstore`.

Credentials come from where that service's tools look for them: environment, profile file, the pod's or machine's role.
They are never part of a URL, of an error or of a log line. Knows nothing of what it keeps.
"""

import configparser
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from quire_bookie.backup.format import BackupError
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ClientConfig

_FORMS = "use s3://bucket/prefix or file:///folder"
_TIMEOUT = timedelta(seconds=60)
_CONNECT_TIMEOUT = timedelta(seconds=5)
_RETRIES_MAX: Final = 3
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_HINTS = (
    ("NoSuchBucket", "the bucket does not exist"),
    ("InvalidAccessKeyId", "the credentials are not accepted"),
    ("access key ID", "the credentials are not accepted"),
    ("SignatureDoesNotMatch", "the credentials are not accepted"),
    ("ExpiredToken", "the credentials are no longer valid"),
    ("AccessDenied", "the credentials may not do this there"),
    ("Forbidden", "the credentials may not do this there"),
    ("169.254.169.254", "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a role"),
    ("Missing region", "set AWS_REGION"),
    ("error sending request", "it cannot be reached"),
    ("HTTP error", "it cannot be reached"),
)


class Place(Protocol):
    """A flat room of objects under names with `/`. Every failure is BackupError, one line."""

    @property
    def url(self) -> str:
        """As a person wrote it."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Write a new object; durable and whole when it returns. BackupError when there is one of this name."""
        ...

    async def get(self, name: str) -> bytes | None:
        """An object, or None."""
        ...

    async def names(self, folder: str = "") -> list[str]:
        """The names of all objects below a folder, ascending."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an object; one that is not there is fine."""
        ...


def open_place(url: str, environment: Mapping[str, str], endpoint: str | None = None) -> Place:
    """The place that a URL names; nothing is asked of it yet. `endpoint`: of an S3 service. ConfigError."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(f"the place of a backup is a plain URL without credentials or options: {_FORMS}")
    if parts.scheme == "file":
        folder = Path(parts.path)
        if parts.netloc or not folder.is_absolute() or folder == Path("/"):
            raise ConfigError(f"{url}: name a folder by its whole path, e.g. file:///backups/quire")
        return _Folder(url, folder)
    if parts.scheme == "s3" and parts.netloc:
        return _Objects(url, _bucket(url, parts.netloc, parts.path.strip("/"), environment, endpoint))
    raise ConfigError(f"{url}: {_FORMS}")


def _bucket(url: str, bucket: str, prefix: str, environment: Mapping[str, str], endpoint: str | None) -> S3Store:
    endpoint = endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    options: ClientConfig = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    given: dict[str, Any] = _keys(environment)
    if endpoint:
        given["endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = True
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or given.pop("region", None)
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            region=region or "us-east-1",
            client_options=options,
            retry_config={"max_retries": _RETRIES_MAX, "retry_timeout": timedelta(seconds=30)},
            **given,
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{url}: {_hint(str(error))}") from None


def _keys(environment: Mapping[str, str]) -> dict[str, Any]:
    """Keys of the environment; else, when it names no role, keys and region of the profile in the AWS tools' files."""
    if environment.get("AWS_ACCESS_KEY_ID"):
        keys = ("access_key_id", "secret_access_key", "session_token")
        return {key: value for key in keys if (value := environment.get(f"AWS_{key.upper()}"))}
    if any(environment.get(name) for name in _ROLES):
        return {}
    home = Path(environment.get("HOME", "/nonexistent")) / ".aws"
    profile = environment.get("AWS_PROFILE", "default")
    files = configparser.RawConfigParser()
    try:
        files.read(
            [
                environment.get("AWS_CONFIG_FILE") or home / "config",
                environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials",
            ]
        )
    except (configparser.Error, OSError) as error:
        raise ConfigError(f"the AWS profile files cannot be read: {type(error).__name__}") from None
    names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
    names |= {"aws_session_token": "session_token", "region": "region"}
    found: dict[str, Any] = {}
    for section in (f"profile {profile}", profile):
        if files.has_section(section):
            found |= {names[key]: value for key, value in files.items(section) if key in names}
    return found


class _Objects:
    """A bucket, or a part of one."""

    def __init__(self, url: str, store: S3Store | LocalStore) -> None:
        self._store = store
        self.url = url

    async def put(self, name: str, data: bytes) -> None:
        try:
            await obstore.put_async(self._store, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            raise BackupError(f"{self.url}: {name} is there already") from None
        except (BaseError, OSError) as error:
            raise self._failed(f"{name} could not be written", error) from None

    async def get(self, name: str) -> bytes | None:
        try:
            answer = await obstore.get_async(self._store, name)
            return bytes(await answer.bytes_async())
        except (NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._failed(f"{name} could not be read", error) from None
            return None
        except (BaseError, OSError) as error:
            raise self._failed(f"{name} could not be read", error) from None

    async def names(self, folder: str = "") -> list[str]:
        found: list[str] = []
        try:
            async for page in obstore.list(self._store, folder or None):
                found += [each["path"] for each in page]
        except (BaseError, OSError) as error:
            raise self._failed("it could not be listed", error) from None
        return sorted(found)

    async def delete(self, name: str) -> None:
        try:
            await obstore.delete_async(self._store, name)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise self._failed(f"{name} could not be removed", error) from None

    def _failed(self, what: str, error: Exception) -> BackupError:
        return BackupError(f"{self.url}: {what}: {_hint(str(error))}")


class _Folder(_Objects):
    """A folder. What is written is synced, and so is its name."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self.url = url
        self._opened: LocalStore | None = None

    @property
    def _store(self) -> LocalStore:  # type: ignore[override]
        if self._opened is None:
            if not self._folder.is_dir():
                raise BackupError(f"{self.url}: the folder does not exist; make it, or mount the volume that has it")
            self._opened = LocalStore(self._folder, automatic_cleanup=True)  # a folder without files goes
        return self._opened

    async def put(self, name: str, data: bytes) -> None:
        await super().put(name, data)
        path = self._folder / name
        try:
            for each in (path, path.parent, self._folder):
                _sync(each)
        except OSError as error:
            raise self._failed(f"{name} could not be synced", error) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hint(text: str) -> str:
    """One line for a person instead of the service's page; what is not known is cut."""
    for sign, meaning in _HINTS:
        if sign.lower() in text.lower():
            return meaning
    message = re.search("<Message>(.*?)</Message>", text, re.DOTALL)
    return " ".join((message[1] if message else text.partition("<")[0]).split())[:200]
