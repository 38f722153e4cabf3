"""A body with as many bytes as the bound is read; one byte more is refused."""

import asyncio
from urllib.request import urlopen

import aiohttp
import pytest

from quire_bookie.env.bounded_body import read_blocking_body, read_blocking_line, read_body
from quire_bookie.errors import PeerProtocolError
from tests.support.sized_answers import sized_answers

BOUND = 100_000


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_the_bound_is_read_and_one_byte_more_is_refused(announced: bool) -> None:
    async def read(port: int) -> bytes:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
            return await read_body(answer, BOUND)

    async with sized_answers(BOUND, announced=announced) as port:
        assert len(await read(port)) == BOUND
    async with sized_answers(BOUND + 1, announced=announced) as port:
        with pytest.raises(PeerProtocolError, match="larger than 100000 bytes"):
            await read(port)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_blocking_body_has_the_same_bound(announced: bool) -> None:
    def read(port: int) -> bytes:
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            return read_blocking_body(answer, BOUND)

    async with sized_answers(BOUND, announced=announced) as port:
        assert len(await asyncio.to_thread(read, port)) == BOUND
    async with sized_answers(BOUND + 1, announced=announced) as port:
        with pytest.raises(PeerProtocolError, match="larger than 100000 bytes"):
            await asyncio.to_thread(read, port)


async def test_a_line_is_bounded_too() -> None:
    def read(port: int) -> bytes:
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            return read_blocking_line(answer, BOUND)

    async with sized_answers(BOUND) as port:
        assert len(await asyncio.to_thread(read, port)) == BOUND
    async with sized_answers(BOUND + 1) as port:
        with pytest.raises(PeerProtocolError, match="longer than 100000 bytes"):
            await asyncio.to_thread(read, port)
