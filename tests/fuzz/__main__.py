"""`python -m tests.fuzz --frames 1000000 [--seed N]`: codecs, a whole bookie, and one that wants a token.

Prints what was tried.
"""

import argparse
import asyncio
import gc
import logging
import random
import resource

from tests.fuzz.bookie import fuzz_bookie
from tests.fuzz.codecs import fuzz_client_codec, fuzz_server_codec
from tests.fuzz.gate import fuzz_gate

_BOOKIE_SHARE = 5
"""Of so many frames one goes to a whole bookie, which takes longer."""
_ROUND_FRAMES = 50_000
_GROWTH_MAX = 1.5
"""Peak memory after any round against that after the first: each round has a bookie of its own."""


def main() -> None:
    """Run all four."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one, printed")
    given = parser.parse_args()
    logging.getLogger("quire").setLevel(logging.CRITICAL)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    requests, refused = fuzz_server_codec(seed, given.frames)
    print(f"server codec: {given.frames} frames, {requests} requests, {refused} connections refused", flush=True)
    answers, refused = fuzz_client_codec(seed, given.frames)
    print(f"client codec: {given.frames} frames, {answers} answers, {refused} connections refused", flush=True)
    wanted = given.frames // _BOOKIE_SHARE
    answers, connections = asyncio.run(fuzz_gate(seed, wanted))
    print(f"gate: {wanted} frames on {connections} connections without a token, {answers} refused", flush=True)
    first_mib = 0
    for start in range(0, wanted, _ROUND_FRAMES):
        outcome = asyncio.run(fuzz_bookie(seed + start, min(_ROUND_FRAMES, wanted - start)))
        gc.collect()  # the world of a round hangs together in circles, and is a hundred MiB
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"bookie: {outcome.frames} frames on {outcome.connections} connections, "
            f"{outcome.answer_bytes} bytes of answers, peak memory {memory_mib} MiB",
            flush=True,
        )
        first_mib = first_mib or memory_mib
        if memory_mib > first_mib * _GROWTH_MAX:
            raise SystemExit(f"memory grows: {first_mib} MiB after the first round, {memory_mib} MiB now")


if __name__ == "__main__":
    main()
