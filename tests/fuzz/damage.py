"""Damaged recorded frames of the stock client: for both codecs alone, a whole bookie, and one that requires a token.

A run prints its number of attempts.
"""

import asyncio
import gc
import logging
import resource

from tests.fuzz.bookie import fuzz_bookie
from tests.fuzz.codecs import fuzz_client_codec, fuzz_server_codec
from tests.fuzz.gate import fuzz_gate

_BOOKIE_SHARE = 5
"""One of this number of frames is sent to a whole bookie, which is slower."""
_ROUND_FRAMES = 50_000
_GROWTH_MAX = 1.5
"""Maximum ratio of the peak memory after any round to that after the first: each round has its own bookie."""


def run_frames(seed: int, frames: int) -> None:
    """Send `frames` damaged frames to each codec, and a fifth of them to each bookie. AssertionError with the seed."""
    logging.getLogger("quire").setLevel(logging.CRITICAL)
    try:
        _run(seed, frames)
    finally:
        logging.getLogger("quire").setLevel(logging.NOTSET)


def _run(seed: int, frames: int) -> None:
    requests, refused = fuzz_server_codec(seed, frames)
    print(f"server codec: {frames} frames, {requests} requests, {refused} connections refused", flush=True)
    answers, refused = fuzz_client_codec(seed, frames)
    print(f"client codec: {frames} frames, {answers} answers, {refused} connections refused", flush=True)
    wanted = frames // _BOOKIE_SHARE
    answers, connections = asyncio.run(fuzz_gate(seed, wanted))
    print(f"gate: {wanted} frames on {connections} connections without a token, {answers} refused", flush=True)
    first_mib = 0
    for start in range(0, wanted, _ROUND_FRAMES):
        outcome = asyncio.run(fuzz_bookie(seed + start, min(_ROUND_FRAMES, wanted - start)))
        gc.collect()  # the objects of a round have reference cycles and take a hundred MiB
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"bookie: {outcome.frames} frames on {outcome.connections} connections, "
            f"{outcome.answer_bytes} bytes of answers, peak memory {memory_mib} MiB",
            flush=True,
        )
        first_mib = first_mib or memory_mib
        if memory_mib > first_mib * _GROWTH_MAX:
            raise SystemExit(f"memory grows: {first_mib} MiB after the first round, {memory_mib} MiB now")
