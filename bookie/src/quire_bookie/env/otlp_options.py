"""Reads where and how spans are sent: the setting of the endpoint, and OpenTelemetry's standard variables."""

import re
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from quire_bookie import __version__
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.settings.traces import TraceSettings

_TRACES_PATH: Final = "/v1/traces"
_TIMEOUT_S: Final = 10.0
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """How spans are sent. `timeout_s`: of one batch, with its retries. Files are empty where none is given."""

    endpoint: str
    headers: Mapping[str, str]
    timeout_s: float
    compresses: bool
    trusted_file: str
    certificate_file: str
    key_file: str
    resource: Mapping[str, str]
    """Attributes of what makes the spans: the name of the service, its version and its host."""


def endpoint_of(settings: TraceSettings, environment: Mapping[str, str]) -> str:
    """Return the URL to which spans go; empty: nothing is traced. ConfigError."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    endpoint = settings.endpoint.strip() or environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    if not endpoint and (base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()):
        endpoint = base.rstrip("/") + _TRACES_PATH
    if "@" in re.split("[/?#]", endpoint.partition("://")[2], maxsplit=1)[0]:
        # Not the URL itself: log lines name the endpoint, and a password would be in them.
        raise ConfigError(
            "traceEndpoint: a URL without user and password; OTEL_EXPORTER_OTLP_HEADERS holds credentials"
        )
    if endpoint and not _is_url(endpoint):
        raise ConfigError(
            f"traceEndpoint {endpoint!r} is not the URL of an OTLP/HTTP receiver; give one such as "
            "http://collector:4318/v1/traces"
        )
    return endpoint


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and text.isascii()
    except ValueError:  # an invalid port, or a bracket without its pair
        return False


def otlp_options(endpoint: str, service: str, environment: Mapping[str, str]) -> OtlpOptions:
    """Return the options. `service`: the name of the service where the environment gives none. ConfigError."""

    def given(name: str) -> tuple[str, str]:
        of_traces, of_all = f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"
        variable = of_traces if environment.get(of_traces, "").strip() else of_all
        return variable, environment.get(variable, "").strip()

    attributes = _pairs("OTEL_RESOURCE_ATTRIBUTES", environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    resource = {"service.name": service, "service.version": __version__, "host.name": socket.gethostname()} | attributes
    if name := environment.get("OTEL_SERVICE_NAME", "").strip():
        resource["service.name"] = name
    return OtlpOptions(
        endpoint=endpoint,
        headers=_headers(*given("HEADERS")),
        timeout_s=_timeout_s(*given("TIMEOUT")),
        compresses=_compresses(*given("COMPRESSION")),
        trusted_file=given("CERTIFICATE")[1],
        certificate_file=given("CLIENT_CERTIFICATE")[1],
        key_file=given("CLIENT_KEY")[1],
        resource=resource,
    )


def _pairs(variable: str, text: str) -> dict[str, str]:
    """Return the pairs of `name=value,name=value`, whose values are percent-encoded."""
    found = {}
    for number, each in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, separator, value = each.partition("=")
        if not separator or not name.strip():
            # Not the text itself: it may be a secret.
            raise ConfigError(f"{variable}: part {number} has no name and value; write name=value,name=value")
        found[unquote(name.strip())] = unquote(value.strip())
    return found


def _headers(variable: str, text: str) -> dict[str, str]:
    headers = _pairs(variable, text)
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"{variable}: {name!r} is not a header of HTTP; use its letters only, without line breaks"
            )
    return headers


def _timeout_s(variable: str, text: str) -> float:
    if not text:
        return _TIMEOUT_S
    if not text.isdecimal() or not 0 < int(text) <= 600_000:
        raise ConfigError(f"{variable}={text!r} is not a time; give milliseconds from 1 to 600000")
    return int(text) / 1000


def _compresses(variable: str, text: str) -> bool:
    if text not in ("", "none", "gzip"):
        raise ConfigError(f"{variable}={text!r} is not supported; use gzip or none")
    return text == "gzip"
