"""Opens object stores, and reads and writes objects: S3-compatible, Google Cloud and Azure storage, and local folders.

Credentials come from where the tools of that service look for them: environment variables, a profile file, or the role
of the pod or machine. They never appear in a URL, an error or a log line. Independent of the content of the objects.
"""

import asyncio
import configparser
import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from quire_bookie.env.durable import sync_path
from quire_bookie.errors import ConfigError, ObjectMissingError, ObjectStoreError
from quire_bookie.model import Buffer
from quire_bookie.object_store.store import ObjectStore, Stored

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
except ModuleNotFoundError as missing:
    if missing.name != "obstore":
        raise
    raise ConfigError(
        "backups and offload need the library obstore, which is not installed; run `pip install 'quire[s3]'`, or the "
        "same with gcs or azure; each of them also opens folders"
    ) from missing

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_Bucket: TypeAlias = S3Store | GCSStore | AzureStore
_FORMS = "use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
_TIMEOUT = timedelta(seconds=60)
_CONNECT_TIMEOUT = timedelta(seconds=5)
_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
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
    ("AccessDenied", "the credentials do not permit this"),
    ("Forbidden", "the credentials do not permit this"),
    ("169.254.169.254", "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a role"),
    ("Missing region", "set AWS_REGION"),
    ("Account must be specified", "set AZURE_STORAGE_ACCOUNT_NAME"),
    ("SlowDown", "the service limits the rate of requests; try again later"),
    ("error sending request", "the service cannot be reached"),
    ("HTTP error", "the service cannot be reached"),
)


def open_object_store(url: str, environment: Mapping[str, str], endpoint: str | None = None) -> ObjectStore:
    """Return the object store that a URL names, without contacting it. ConfigError if the URL or a setting is invalid.

    `endpoint`: address of an S3-compatible or Azure service; None: the default of the service.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(f"the URL of an object store holds no credentials or options: {_FORMS}")
    if endpoint and "@" in endpoint:
        raise ConfigError("an endpoint is a plain URL without credentials: give them in environment variables")
    if parts.scheme == "file":
        folder = Path(parts.path)
        if parts.netloc or not folder.is_absolute() or folder == Path("/"):
            raise ConfigError(f"{url}: give the absolute path of a folder, e.g. file:///backups/quire")
        return _Folder(url, folder)
    if parts.scheme not in ("s3", "gs", "az") or not parts.netloc:
        raise ConfigError(f"{url}: {_FORMS}")
    prefix = parts.path.strip("/")
    try:
        if parts.scheme == "gs":
            return _Objects(url, _google(parts.netloc, prefix, environment))
        if parts.scheme == "az":
            return _Objects(url, _azure(parts.netloc, prefix, environment, endpoint))
        return _Objects(url, _amazon(parts.netloc, prefix, environment, endpoint))
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{url}: {_hint(str(error))}") from None


def _google(bucket: str, prefix: str, environment: Mapping[str, str]) -> GCSStore:
    given: dict[str, Any] = {}
    if path := environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        given["application_credentials"] = path
    return GCSStore(bucket, prefix=prefix or None, client_options=_options(None), retry_config=_RETRIES, **given)


def _azure(container: str, prefix: str, environment: Mapping[str, str], endpoint: str | None) -> AzureStore:
    """Use the account and its key, or a role, from the environment variables that Azure's tools read."""
    names = ("account_name", "account_key", "tenant_id", "client_id", "client_secret", "federated_token_file")
    known: dict[str, tuple[str, ...]] = {
        name: (f"AZURE_STORAGE_{name.upper()}", f"AZURE_{name.upper()}") for name in names
    }
    known["account_name"] += ("AZURE_STORAGE_ACCOUNT",)
    known["account_key"] += ("AZURE_STORAGE_ACCESS_KEY",)
    given: dict[str, Any] = {
        name: value
        for name, variables in known.items()
        if (value := next((environment[each] for each in variables if environment.get(each)), None))
    }
    if endpoint:
        given["endpoint"] = endpoint
    options = _options(endpoint)
    return AzureStore(container, prefix=prefix or None, client_options=options, retry_config=_RETRIES, **given)


def _options(endpoint: str | None) -> "ClientConfig":
    options: ClientConfig = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    if endpoint and endpoint.startswith("http://"):
        options["allow_http"] = True
    return options


def _amazon(bucket: str, prefix: str, environment: Mapping[str, str], endpoint: str | None) -> S3Store:
    endpoint = endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    given: dict[str, Any] = _keys(environment)
    if endpoint:
        given["endpoint"] = endpoint
    of_profile = given.pop("region", None)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or of_profile
    return S3Store(
        bucket,
        prefix=prefix or None,
        region=region or "us-east-1",
        client_options=_options(endpoint),
        retry_config=_RETRIES,
        **given,
    )


def _keys(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of the environment, or keys and region of the profile in the files of the AWS tools.

    Empty when the environment names a role. ConfigError when the profile files cannot be read.
    """
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
    """A bucket, or a prefix within one."""

    def __init__(self, url: str, store: _Bucket | LocalStore) -> None:
        self._store = store
        self.url = url

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        try:
            await obstore.put_async(
                self._store,
                name,
                data,
                mode="overwrite" if overwrite else "create",
                use_multipart=False,
                attributes=self._attributes(attributes),
            )
        except AlreadyExistsError:
            raise ObjectStoreError(f"{self.url}: {name} already exists") from None
        except (BaseError, OSError) as error:
            raise self._failed(f"{name} could not be written", error) from None

    async def put_stream(
        self,
        name: str,
        chunks: AsyncIterator[Buffer],
        *,
        part_bytes: int,
        parts_at_once: int,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        source = _Source(chunks)
        try:
            await obstore.put_async(
                self._store,
                name,
                source,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parts_at_once,
                attributes=self._attributes(attributes),
            )
        except Exception as error:
            if source.failure is not None:
                raise source.failure from None
            if isinstance(error, (BaseError, OSError)):
                raise self._failed(f"{name} could not be written", error) from None
            raise

    def _attributes(self, given: Mapping[str, str] | None) -> dict[str, str] | None:
        return None if given is None else dict(given)

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

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        try:
            return memoryview(await obstore.get_range_async(self._store, name, start=start, end=end))
        except (NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._failed(f"{name} could not be read", error) from None
            raise ObjectMissingError(f"{self.url}: {name} does not exist") from None
        except (BaseError, OSError) as error:
            if start == 0 and await self._is_empty(name):
                return b""  # services refuse every range of an empty object
            raise self._failed(f"{name} could not be read", error) from None

    async def _is_empty(self, name: str) -> bool:
        try:
            return (await obstore.head_async(self._store, name))["size"] == 0
        except (BaseError, OSError):
            return False

    async def names(self, folder: str = "") -> list[str]:
        return sorted([each.name async for each in self.stored(folder)])

    async def stored(self, folder: str = "") -> AsyncIterator[Stored]:
        try:
            async for page in obstore.list(self._store, folder or None):
                for each in page:
                    yield Stored(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))
        except (BaseError, OSError) as error:
            raise self._failed("its objects could not be listed", error) from None

    async def delete(self, name: str) -> None:
        try:
            await obstore.delete_async(self._store, name)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise self._failed(f"{name} could not be deleted", error) from None

    def _failed(self, what: str, error: Exception) -> ObjectStoreError:
        return ObjectStoreError(f"{self.url}: {what}: {_hint(str(error))}")


class _Source:
    """Passes chunks to the library and keeps the error that ended them, since the library wraps it in one of its
    own."""

    def __init__(self, chunks: AsyncIterator[Buffer]) -> None:
        self._chunks = chunks
        self.failure: BaseException | None = None

    def __aiter__(self) -> "_Source":
        return self

    async def __anext__(self) -> Buffer:
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise


class _Folder(_Objects):
    """A local folder. Syncs each written file and its folder entry. Stores no attributes."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self.url = url
        self._opened: LocalStore | None = None

    @property
    def _store(self) -> LocalStore:  # type: ignore[override]
        if self._opened is None:
            if not self._folder.is_dir():
                raise ObjectStoreError(f"{self.url}: the folder does not exist; create it, or mount its volume")
            self._opened = LocalStore(self._folder, automatic_cleanup=True)  # removes folders that became empty
        return self._opened

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        await super().put(name, data, overwrite=overwrite, attributes=attributes)
        await self._make_durable(name)

    async def put_stream(
        self,
        name: str,
        chunks: AsyncIterator[Buffer],
        *,
        part_bytes: int,
        parts_at_once: int,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        await super().put_stream(
            name, chunks, part_bytes=part_bytes, parts_at_once=parts_at_once, attributes=attributes
        )
        await self._make_durable(name)

    def _attributes(self, given: Mapping[str, str] | None) -> dict[str, str] | None:
        return None

    async def _make_durable(self, name: str) -> None:
        path = self._folder / name
        try:
            for each in (path, path.parent, self._folder):
                await asyncio.to_thread(sync_path, each)
        except OSError as error:
            raise self._failed(f"{name} could not be synced", error) from None


def _hint(text: str) -> str:
    """Return one readable line in place of the error page of the service; an unknown text is cut to 200
    characters."""
    for sign, meaning in _HINTS:
        if sign.lower() in text.lower():
            return meaning
    message = re.search("<Message>(.*?)</Message>", text, re.DOTALL)
    return " ".join((message[1] if message else text.partition("<")[0]).split())[:200]
