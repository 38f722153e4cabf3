"""The codecs alone: for any input they return or raise PeerProtocolError, and they buffer at most one frame."""

import random

from quire_bookie.errors import PeerProtocolError
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import AddBatch, AddRequest, ReadRun, Request
from quire_bookie.wire.server_codec import ServerCodec
from tests.fuzz.frames import chunks, conversation

FRAME_BYTES_MAX = 64 * 1024
_FRAMES_PER_CONNECTION_MAX = 40


def fuzz_server_codec(seed: int, frames: int) -> tuple[int, int]:
    """Feed damaged requests. Returns the numbers of decoded requests and of refused connections."""
    rng = random.Random(seed)
    done = requests = refused = 0
    while done < frames:
        codec, batched = ServerCodec(FRAME_BYTES_MAX), ServerCodec(FRAME_BYTES_MAX, batches=True)
        sent = conversation(rng, ">", _FRAMES_PER_CONNECTION_MAX, rng.choice((2, 3)))
        done += len(sent)
        for chunk in chunks(rng, b"".join(sent)):
            found = codec.feed(chunk)
            requests += len(found)
            together = _one_by_one(batched.feed(chunk))
            assert sorted(map(repr, _one_by_one(found))) == sorted(map(repr, together))
        assert (codec.failure is None) == (batched.failure is None)
        refused += codec.failure is not None
    return requests, refused


def _one_by_one(requests: list[Request]) -> list[object]:
    """Return every add and every read separately, even if they were decoded as a batch."""
    found: list[object] = []
    for request in requests:
        if isinstance(request, AddRequest):
            ids = (request.master_key, request.recovery, request.high_priority, request.header, request.short)
            first, ledger = request.reply_first, request.reply_ledger
            found += [(ledger, first + at, bytes(entry), *ids) for at, entry in enumerate(request.run.entries)]
        elif isinstance(request, AddBatch | ReadRun):
            found += _one_by_one(list(request.requests()))
        else:
            found.append(request)
    return found


def fuzz_client_codec(seed: int, frames: int) -> tuple[int, int]:
    """Feed damaged responses to the client. Returns the numbers of decoded responses and of refused connections."""
    rng = random.Random(seed)
    done = answers = refused = 0
    while done < frames:
        generation = rng.choice((2, 3))
        codec = ClientCodec(generation, FRAME_BYTES_MAX)
        sent = conversation(rng, "<", _FRAMES_PER_CONNECTION_MAX, generation)
        done += len(sent)
        try:
            for chunk in chunks(rng, b"".join(sent)):
                answers += len(codec.feed(chunk))
        except PeerProtocolError:
            refused += 1
    return answers, refused
