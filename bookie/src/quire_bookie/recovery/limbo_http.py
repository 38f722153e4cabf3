"""Tells a bookie over its admin HTTP that a ledger holds there what it must hold: `PUT /api/v1/quire/limbo/end`.

One question on a connection of its own, written by hand: the admin library belongs to servers. Never retries.
"""

import asyncio
import json

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId, LedgerId

_ANSWER_BYTES_MAX = 64 * 1024
_TIMEOUT_S = 30.0
LIMBO_END_PATH = "/api/v1/quire/limbo/end"


class LimboOverHttp:
    """The call, at the HTTP endpoint that the bookie registered."""

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry

    async def end(self, bookie: BookieId, ledger: LedgerId) -> None:
        """Durable when it returns. BookieUnavailableError when the bookie has no HTTP server or refuses."""
        info = self._registry.service_info(bookie)
        endpoints = [] if info is None else [one for one in info.endpoints if one.protocol == "http"]
        if not endpoints:
            raise BookieUnavailableError(f"bookie {bookie} has no HTTP port (httpServerPort), which ends limbo")
        host, port = endpoints[0].host, endpoints[0].port
        where = f"bookie {bookie} at http://{host}:{port}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, text = await _put(host, port, LIMBO_END_PATH, {"ledger": ledger})
        except (OSError, TimeoutError, ValueError) as error:
            raise BookieUnavailableError(f"{where} did not end limbo: {error}") from error
        if status != 200:
            raise BookieUnavailableError(f"{where} answered {status}: {text[:200]}")


async def _put(host: str, port: int, path: str, body: dict[str, int]) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        data = json.dumps(body).encode()
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = bytearray()
        while len(answer) < _ANSWER_BYTES_MAX and (part := await reader.read(_ANSWER_BYTES_MAX)):
            answer += part
    finally:
        writer.close()
    first, _, rest = bytes(answer).partition(b"\r\n")
    fields = first.split()
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/"):
        raise ValueError("it speaks no HTTP")
    return int(fields[1]), rest.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")
