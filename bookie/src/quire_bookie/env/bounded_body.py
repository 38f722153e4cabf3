"""Reads the body of an HTTP response up to a bound. Every client of ours uses it: a peer must not fill its memory.

The bound counts the bytes that the client keeps. A client asks for `IDENTITY`, so that these are the bytes sent.
"""

from typing import TYPE_CHECKING, Final, Protocol

from quire_bookie.errors import PeerProtocolError

if TYPE_CHECKING:
    import aiohttp  # its import takes 0.7 s, and commands do without it

IDENTITY: Final = {"Accept-Encoding": "identity"}
"""Headers that ask for a body without compression."""


class BlockingBody(Protocol):
    """A response of the standard library."""

    def read(self, amount: int, /) -> bytes:
        """Return at most this number of bytes; fewer only at the end."""
        ...

    def readline(self, limit: int, /) -> bytes:
        """Return a line with its end, or at most this number of bytes."""
        ...


async def read_body(answer: "aiohttp.ClientResponse", bytes_max: int) -> bytes:
    """Return the whole body. PeerProtocolError if it is larger; the caller then closes the connection."""
    if answer.content_length is not None and answer.content_length > bytes_max:
        raise too_large(bytes_max)
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > bytes_max:
            raise too_large(bytes_max)
    return bytes(body)


def read_blocking_body(answer: BlockingBody, bytes_max: int) -> bytes:
    """Return the whole body of a blocking response. PeerProtocolError if it is larger."""
    body = answer.read(bytes_max + 1)
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    return body


def read_blocking_line(answer: BlockingBody, bytes_max: int) -> bytes:
    """Return the next line of a blocking response; empty at its end. PeerProtocolError if the line is longer."""
    line = answer.readline(bytes_max + 1)
    if len(line) > bytes_max:
        raise PeerProtocolError(f"a line of the response is longer than {bytes_max} bytes, the limit")
    return line


def too_large(bytes_max: int) -> PeerProtocolError:
    """Return the error for a body that is larger than this."""
    return PeerProtocolError(
        f"the response is larger than {bytes_max} bytes, the limit: check the address, or ask for less"
    )
