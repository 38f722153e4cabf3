"""Reads the body of an HTTP response up to a bound: a peer must not fill the memory of the operator or of a command."""

import json
from typing import Any, Final

import aiohttp

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Decoded JSON takes up to ten times the bytes sent; 10,000 topics with their cursors have some 4 MiB."""
IDENTITY: Final = {"Accept-Encoding": "identity"}
"""Headers that ask for a body without compression."""


async def read_json(answer: aiohttp.ClientResponse) -> Any:
    """Return the decoded body; None if it is empty. ValueError if it is larger or not JSON.

    The caller then closes the connection.
    """
    body = await read_body(answer)
    return json.loads(body) if body.strip() else None


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body. ValueError if it is larger than `bytes_max`; the caller then closes the connection."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > bytes_max:
            raise ValueError(
                f"the response is larger than {bytes_max} bytes, the limit: is this the port of a bookie or broker?"
            )
    return bytes(body)
