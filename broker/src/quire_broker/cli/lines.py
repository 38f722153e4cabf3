"""Splits the input from a file or a pipe into lines, and holds none back."""

from collections.abc import AsyncIterator

from quire_bookie.env.piped_input import pieces_of
from quire_bookie.errors import ConfigError


async def lines_of(descriptor: int, name: str, *, bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each read, without their ends: a complete line never waits for more input.

    ConfigError for a line of more than `bytes_max`.
    """
    rest = b""
    number = 1
    async for piece in pieces_of(descriptor, name):
        *lines, rest = (rest + piece).split(b"\n")
        for line in (*lines, rest):
            if len(line) > bytes_max:
                raise ConfigError(
                    f"{name}: line {number} has more than {bytes_max:,} bytes, which the broker refuses; split it"
                )
            number += 1
        number -= 1
        if lines:
            yield [line.rstrip(b"\r") for line in lines]
    if rest:
        yield [rest.rstrip(b"\r")]
