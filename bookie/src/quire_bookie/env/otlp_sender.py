"""Sends encoded spans to a collector by OTLP over HTTP. Used in one thread, which it may hold for the time limit.

A connection is kept open between batches. What a collector refuses for the moment is sent again, later each time, until
the time limit of the batch. Redirects are not followed, and proxies of the environment are not used.
"""

import contextlib
import gzip
import http.client
import ssl
import threading
import time
from collections.abc import Sequence
from socket import SHUT_RDWR
from typing import Final
from urllib.parse import urlsplit

from quire_bookie import __version__
from quire_bookie.env.otlp_encoding import encode_request, encode_resource
from quire_bookie.env.otlp_options import OtlpOptions
from quire_bookie.errors import ConfigError

_BUSY: Final = frozenset((429, 502, 503, 504))
"""Answers after which the protocol wants the batch again."""
_RETRY_S: Final = 1.0
"""The pause before the second attempt; each later one is twice as long."""
_ANSWER_BYTES_MAX: Final = 64 * 1024
_NO_PAUSE: Final = 0.0


class OtlpSender:
    """Sends spans of one service to one endpoint."""

    def __init__(self, options: OtlpOptions) -> None:
        """ConfigError: the certificates cannot be used."""
        self._options = options
        self._resource = encode_resource(options.resource)
        url = urlsplit(options.endpoint)
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._headers = {
            "User-Agent": f"quire/{__version__}",
            **options.headers,
            "Content-Type": "application/x-protobuf",
            **({"Content-Encoding": "gzip"} if options.compresses else {}),
        }
        self._stopped = threading.Event()
        self._connection: http.client.HTTPConnection
        host, port, timeout_s = str(url.hostname), url.port, options.timeout_s
        if url.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_tls(options))
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def send(self, spans: Sequence[tuple[str, bytes]]) -> bool:
        """See SpanSender."""
        body = encode_request(self._resource, spans)
        if self._options.compresses:
            body = gzip.compress(body, compresslevel=1)
        until_s, pause_s = time.monotonic() + self._options.timeout_s, _RETRY_S
        while True:
            was_open = self._connection.sock is not None
            status, wanted_s = self._attempt(body)
            if 200 <= status < 300:
                return True
            if status and status not in _BUSY:
                return False
            if status or not was_open:  # else: perhaps only the kept connection had ended
                wanted_s, pause_s = max(wanted_s, pause_s), pause_s * 2
            if time.monotonic() + wanted_s >= until_s or self._stopped.wait(wanted_s):
                return False

    def stop(self) -> None:
        """See SpanSender."""
        self._stopped.set()
        if (sock := self._connection.sock) is not None:
            with contextlib.suppress(OSError):  # it was closed at the same time
                sock.shutdown(SHUT_RDWR)

    def _attempt(self, body: bytes) -> tuple[int, float]:
        """Return the status, 0 if there was no answer, and the pause in s that the collector asks for."""
        connection = self._connection
        try:
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            if len(answer.read(_ANSWER_BYTES_MAX)) == _ANSWER_BYTES_MAX:
                connection.close()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0, _NO_PAUSE
        after = answer.headers.get("Retry-After", "")
        return answer.status, float(after) if after.isdecimal() and after.isascii() else _NO_PAUSE


def _tls(options: OtlpOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.trusted_file or None)
        if options.certificate_file:
            context.load_cert_chain(options.certificate_file, options.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.trusted_file, options.certificate_file, options.key_file)))
        raise ConfigError(
            f"traces to {options.endpoint}: the certificates of OTEL_EXPORTER_OTLP_* ({files}) cannot be used: "
            f"{error}; give readable PEM files"
        ) from error
    return context
