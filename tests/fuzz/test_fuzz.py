"""The fuzzers at a size that a test run can afford; the full size is `python -m tests.fuzz --frames 1000000`."""

import os
import random
import zlib

import pytest

from tests.fuzz.bookie import fuzz_bookie
from tests.fuzz.codecs import fuzz_client_codec, fuzz_server_codec
from tests.fuzz.frames import damaged, recorded
from tests.fuzz.gate import fuzz_gate, is_refusal

# Different in each run, but equal in all workers of a run, as they must collect the same tests.
FRESH = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", "").encode()) or random.SystemRandom().randrange(2**32)


@pytest.mark.parametrize("seed", [1, 2, FRESH])
def test_damaged_requests_never_crash_the_codec(seed: int) -> None:
    requests, refused = fuzz_server_codec(seed, 20_000)
    assert requests > 1000 and refused > 100, f"seed {seed}: the damage was too harmless or too harsh"


@pytest.mark.parametrize("seed", [1, 2, FRESH])
def test_damaged_answers_never_crash_the_client_codec(seed: int) -> None:
    answers, refused = fuzz_client_codec(seed, 20_000)
    assert answers > 1000 and refused > 100, f"seed {seed}: the damage was too harmless or too harsh"


@pytest.mark.parametrize("seed", [1, FRESH])
async def test_damaged_requests_do_not_change_a_bookie(seed: int) -> None:
    outcome = await fuzz_bookie(seed, 4_000)
    assert outcome.answer_bytes > 10_000, f"seed {seed}"


@pytest.mark.parametrize("seed", [1, FRESH])
async def test_damaged_requests_without_a_token_are_only_refused(seed: int) -> None:
    answers, connections = await fuzz_gate(seed, 4_000)
    assert answers > 100 and connections > 100, f"seed {seed}"


def test_responses_of_a_bookie_without_authentication_are_not_refusals() -> None:
    taken = [frame for frame in recorded("<") if not is_refusal(frame)]
    assert len(taken) > len(recorded("<")) // 2


def test_the_same_seed_generates_the_same_frames() -> None:
    one, two = ([damaged(rng, recorded(">")) for _ in range(100)] for rng in (random.Random(5), random.Random(5)))
    assert one == two
