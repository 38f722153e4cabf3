"""A whole bookie with token authentication, and clients without a token that send damaged frames.

For any input they get *unauthorized*, a refusal of START_TLS, or the end of the connection; no request is executed.
"""

import asyncio
import base64
import contextlib
import random
from dataclasses import fields, replace

from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.security import AuthKind, RoleSettings, SecuritySettings
from quire_bookie.settings.tokens import TokenSettings
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import v2_auth, v3_auth
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.server_v2 import V3_FIRST_BYTE
from quire_bookie.wire.status import V2_CODES, Status
from tests.fuzz.frames import conversation
from tests.support.bookie_world import BookieWorld

_CONNECTIONS = 16
_FRAMES_PER_CONNECTION = 50
_GUESSES = (v2_auth("token", b"guess"), v2_auth("other", b""), v3_auth(1, "token", b"\xff.\xff."), v3_auth(2, "", b""))
_UNTOUCHED = {"connections_opened", "connections_open", "protocol_failures"}
"""The only counters that a client without a token may change."""
_TIMEOUT_S = 60.0


async def fuzz_gate(seed: int, frames: int) -> tuple[int, int]:
    """Send `frames` frames. Returns (responses, connections). AssertionError with the seed if one was executed."""
    rng = random.Random(seed)
    secret = base64.b64encode(rng.randbytes(32)).decode()
    token = TokenSettings(secret_key=f"data:;base64,{secret}")
    world = BookieWorld().with_settings(security=SecuritySettings(roles=RoleSettings(AuthKind.TOKEN, token=token)))
    running = await world.start()
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context.get("message"))))
    sent = answers = connections = 0
    try:
        while sent < frames:
            batches = [conversation(rng, ">", _FRAMES_PER_CONNECTION, rng.choice((2, 3))) for _ in range(_CONNECTIONS)]
            for batch in batches:
                if rng.random() < 0.5:
                    batch.insert(rng.randrange(len(batch) + 1), rng.choice(_GUESSES))
            async with asyncio.timeout(_TIMEOUT_S):
                streams = await asyncio.gather(*(_attack(running.port, batch) for batch in batches))
            sent += sum(map(len, batches))
            connections += len(batches)
            answers += sum(_count_refusals(stream, seed) for stream in streams)
            assert not faults, f"seed {seed}: {faults[:3]}"
        _check_untouched(running.bookie.stats, seed)
    finally:
        await world.stop()
    return answers, connections


async def _attack(port: int, batch: list[bytes]) -> bytes:
    """Send all frames, close the sending half, and return the bytes received until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        writer.write(b"".join(batch))
        writer.write_eof()
        while data := await reader.read(65536):
            received += data
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return bytes(received)


def _count_refusals(stream: bytes, seed: int) -> int:
    count = at = 0
    while len(stream) - at >= v2.LENGTH_AND_HEADER.size:
        stop = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        if stop > len(stream):
            break  # the bookie closed with unread bytes, and the resulting reset discarded sent responses
        assert is_refusal(stream[at:stop]), f"seed {seed}: {stream[at:stop].hex()}"
        count, at = count + 1, stop
    return count


def is_refusal(frame: bytes) -> bool:
    """Return whether a response reveals nothing but the refusal to a client without a token."""
    if frame[4] == V3_FIRST_BYTE:
        answer = pb.Response.FromString(frame[4:])
        if answer.header.operation == pb.START_TLS:
            return answer.status == pb.EBADREQ
        return answer.status == pb.EUA and [field.name for field, _ in answer.ListFields()] == ["header", "status"]
    return len(frame) == v2.ADD_RESPONSE_FRAME_BYTES and v2.RESPONSE.unpack(frame)[2] == V2_CODES[Status.UNAUTHORIZED]


def _check_untouched(stats: BookieStats, seed: int) -> None:
    fresh = BookieStats()
    for name in (field.name for field in fields(replace(stats)) if field.name not in _UNTOUCHED):
        found, wanted = getattr(stats, name), getattr(fresh, name)
        found, wanted = getattr(found, "total", found), getattr(wanted, "total", wanted)
        assert found == wanted, f"seed {seed}: {name} is {found}"
