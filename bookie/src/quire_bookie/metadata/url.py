"""Parses the URL of the metadata store."""

from urllib.parse import urlsplit

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError

_ETCD_PORT = 2379
_FORMS = "use local:<folder> or etcd://host:port[,host:port...]"


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """The embedded store in a folder."""

    folder: str


@dataclass(frozen=True, slots=True)
class EtcdLocation:
    """An etcd cluster: `host:port` of each member to connect to."""

    endpoints: tuple[str, ...]
    tls: bool


def parse_metadata_url(url: str) -> LocalLocation | EtcdLocation:
    """Parse the URL of the metadata store.

    Accepts `local:<folder>`, `etcd://h1:2379,h2:2379`, `etcd:http://h1:2379,http://h2:2379` (Pulsar's form) and
    `metadata-store:` in front of any of them with `;` for `,` (BookKeeper's form). ConfigError for anything else.
    """
    text = url.strip().removeprefix("metadata-store:").replace(";", ",")
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "local":
        folder = rest.removeprefix("//")
        if not folder:
            raise ConfigError(f"metadata store {url!r} contains no folder; {_FORMS}")
        return LocalLocation(folder)
    if "@" in text:  # not shown: it may hold a password
        raise ConfigError(
            f"a metadata store's URL has no user or password: use metadataUsername and metadataPassword; {_FORMS}"
        )
    if colon and scheme == "etcd":
        return _parse_etcd(url, rest.removeprefix("//") if rest.startswith("//") else rest)
    if scheme.partition("+")[0] in ("zk", "oxia"):
        raise ConfigError(f"metadata store {url!r}: ZooKeeper and Oxia are not supported; {_FORMS}")
    raise ConfigError(f"metadata store {url!r} has an unknown scheme; {_FORMS}")


def _parse_etcd(url: str, members: str) -> EtcdLocation:
    endpoints: list[str] = []
    schemes: set[str] = set()
    for member in members.split(","):
        text = member.strip() if "://" in member else f"http://{member.strip()}"
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port or _ETCD_PORT
        except ValueError as error:
            raise ConfigError(f"metadata store {url!r}: {member!r} is not host:port ({error})") from error
        if not host or parts.scheme not in ("http", "https") or parts.username or parts.path not in ("", "/"):
            raise ConfigError(f"metadata store {url!r}: {member!r} is not host:port; {_FORMS}")
        if parts.query or parts.fragment:
            raise ConfigError(f"metadata store {url!r}: {member!r} has a query or fragment, not supported; {_FORMS}")
        schemes.add(parts.scheme)
        endpoints.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if len(schemes) > 1:
        raise ConfigError(f"metadata store {url!r} mixes http and https; use one of them for all members")
    return EtcdLocation(tuple(dict.fromkeys(endpoints)), schemes == {"https"})
