"""Scrapes of a registry: formats, pieces of large families, values that no double holds, turns of the event loop."""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from quire_bookie import limits
from quire_bookie.exposition.families import Families, pieces
from quire_bookie.exposition.rendering import LEFT_OUT, PAUSE, SKIPPED, Exposition, classic_text
from tests.support.scrapes import ACCEPT_OPENMETRICS, CLASSIC, OPENMETRICS, check_formats

ROWS = [((f"topic-{number}",), float(number)) for number in range(3 * limits.SCRAPE_PIECE_SAMPLES)]


class Collected:
    """A collector of what `make` returns at each scrape."""

    def __init__(self, make: Callable[[], Iterable[Metric]]) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        return self._make()


def exposition(*makes: Callable[[], Iterable[Metric]]) -> Exposition:
    found = Exposition()
    for make in makes:
        found.registry.register(Collected(make))
    return found


def some() -> Families:
    families = Families()
    families.add("quire_things", "counter", "things", 2, {})
    families.add("quire_more_total", "counter", "more", 3, {})
    return families


def large() -> Iterable[Metric]:
    return pieces("quire_large", "gauge", "large", ("topic",), ROWS)


def whole() -> Iterable[Metric]:
    family = GaugeMetricFamily("quire_large", "large", labels=["topic"])
    for labels, value in ROWS:
        family.add_metric(labels, value)
    return [family]


async def test_the_accept_header_chooses_the_format() -> None:
    found = exposition(some, large)
    classic, openmetrics = await found.scrape(""), await found.scrape(ACCEPT_OPENMETRICS)
    assert classic.content_type == CLASSIC
    assert openmetrics.content_type.startswith(f"{OPENMETRICS}; version=1.0.0; charset=utf-8")
    assert openmetrics.body.endswith(b"\n# EOF\n") and openmetrics.body.count(b"# EOF") == 1
    families = check_formats(classic.body.decode(), openmetrics.body.decode())
    assert families.keys() == {"quire_things", "quire_more", "quire_large"}


@pytest.mark.parametrize(
    "accept", ["*/*", "text/plain;version=0.0.4", "application/json", "application/openmetrics-text;version=0.0.1"]
)
async def test_other_headers_get_the_classic_format(accept: str) -> None:
    assert (await exposition(some).scrape(accept)).content_type == CLASSIC


@pytest.mark.parametrize(
    "version",
    ["abc", "1.x", "\N{SUPERSCRIPT TWO}", "2.\N{DEGREE SIGN}", "2.\udce9", "9" * 5000, ""],
)
async def test_a_malformed_version_is_answered(version: str) -> None:
    scrape = await exposition(some).scrape(f"application/openmetrics-text;version={version}")
    assert scrape.content_type.isascii()
    assert b"quire_things 2.0\n" in scrape.body


async def test_pieces_make_the_same_text_as_the_whole_family() -> None:
    registry = CollectorRegistry()
    registry.register(Collected(whole))
    registry.register(Collected(lambda: [GaugeMetricFamily("quire_other", "other", 1)]))
    found = exposition(large, lambda: [GaugeMetricFamily("quire_other", "other", 1)])
    assert (await found.scrape("")).body == generate_latest(registry)
    encode, content_type = choose_encoder(ACCEPT_OPENMETRICS)
    scrape = await found.scrape(ACCEPT_OPENMETRICS)
    assert bytes(scrape.body) == encode(registry)
    assert scrape.content_type == content_type


async def test_nothing_registered_is_an_empty_scrape() -> None:
    assert (await Exposition().scrape("")).body == b""
    assert (await Exposition().scrape(ACCEPT_OPENMETRICS)).body == b"# EOF\n"


async def test_the_event_loop_runs_during_a_large_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SLICE_S", 0.0)
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1
        asyncio.get_running_loop().call_soon(count)

    asyncio.get_running_loop().call_soon(count)
    await exposition(large).scrape("")
    assert iterations >= len(ROWS) // limits.SCRAPE_PIECE_SAMPLES


async def test_scrapes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SLICE_S", 0.0)
    running = most = 0

    def counted() -> Iterable[Metric]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        yield from large()
        running -= 1

    found = exposition(counted)
    bodies = await asyncio.gather(*(found.scrape("") for _ in range(5)))
    assert most == 1
    assert len({bytes(scrape.body) for scrape in bodies}) == 1


async def test_a_failed_scrape_does_not_block_the_next() -> None:
    wrong = True

    def sometimes() -> Iterable[Metric]:
        if wrong:
            raise RuntimeError("no")
        return some()

    found = exposition(sometimes)
    with pytest.raises(RuntimeError):
        await found.scrape("")
    wrong = False
    assert b"quire_things 2.0" in (await found.scrape("")).body


@pytest.mark.parametrize("bad", [10**400, -(10**400), "12", None, [1]])
async def test_a_value_that_is_not_a_number_is_omitted_and_counted(bad: Any) -> None:
    def collected() -> Iterable[Metric]:
        families = Families()
        families.add("quire_quota", "gauge", "text", bad, {"topic": "a"})
        families.add("quire_good", "gauge", "text", 7, {"topic": "a"})
        families.add("quire_mixed", "gauge", "text", bad, {"topic": "a"})
        families.add("quire_mixed", "gauge", "text", 8, {"topic": "b"})
        families.add("quire_quota", "gauge", "text", bad, {"topic": "b"})
        return families

    scraped = exposition(collected)
    classic = (await scraped.scrape("")).body.decode()
    found = check_formats(classic, (await scraped.scrape(ACCEPT_OPENMETRICS)).body.decode())
    assert {name: [(s.labels, s.value) for s in family.samples] for name, family in found.items()} == {
        "quire_good": [({"topic": "a"}, 7)],
        "quire_mixed": [({"topic": "b"}, 8)],
        SKIPPED: [({"metric": "quire_quota"}, 2), ({"metric": "quire_mixed"}, 1)],
    }


async def test_a_piece_whose_values_are_all_bad_leaves_the_header_to_the_next() -> None:
    rows: list[tuple[tuple[str], Any]] = [(("bad",), None)] * limits.SCRAPE_PIECE_SAMPLES + [(("good",), 1)]
    text = (await exposition(lambda: pieces("quire_x", "gauge", "x", ("topic",), rows)).scrape("")).body.decode()
    assert text.startswith('# HELP quire_x x\n# TYPE quire_x gauge\nquire_x{topic="good"} 1.0\n')


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0, -1.0, 1e300, 10**300, 0.1, True])
def test_every_double_is_shown(value: float) -> None:
    families = Families()
    families.add("quire_good", "gauge", "text", value, {})
    (family,) = text_string_to_metric_families(classic_text(families))
    assert family.samples[0].value == float(value)


async def test_concurrent_scrapes_of_a_format_share_one_response() -> None:
    collections = []

    def counted() -> Iterable[Metric]:
        collections.append(1)
        return large()

    found = exposition(counted)
    first, second, other = await asyncio.gather(found.scrape(""), found.scrape(""), found.scrape(ACCEPT_OPENMETRICS))
    assert first is second and other.content_type != first.content_type
    assert len(collections) == 2
    assert (await found.scrape("")).body == first.body
    assert len(collections) == 3, "a later scrape collects again"


async def test_a_scrape_that_ends_leaves_its_response_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SLICE_S", 0.0)
    pieces_made = []

    def slow() -> Iterable[Metric]:
        for family in large():
            pieces_made.append(1)
            yield family

    found = exposition(slow)
    gone, stays = asyncio.create_task(found.scrape("")), asyncio.create_task(found.scrape(""))
    await asyncio.sleep(0)
    gone.cancel()
    assert b"topic-0" in (await stays).body
    pieces_made.clear()
    alone = asyncio.create_task(found.scrape(""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    assert alone.cancelled()
    assert 0 < len(pieces_made) < len(list(large())), "nothing is encoded that no scrape waits for"
    assert b"topic-0" in (await found.scrape("")).body


async def test_values_beyond_the_limit_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SAMPLES_MAX", len(ROWS) - 1)
    text = (await exposition(large).scrape("")).body.decode()
    shown = [line for line in text.splitlines() if line.startswith("quire_large{")]
    assert len(shown) == 2 * limits.SCRAPE_PIECE_SAMPLES
    assert f'{LEFT_OUT}{{metric="quire_large"}} {float(limits.SCRAPE_PIECE_SAMPLES)}' in text


async def test_a_pause_is_not_shown_and_lets_the_loop_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_SLICE_S", 0.0)
    turns = []

    def computed() -> Iterable[Metric]:
        yield PAUSE
        turns.append(len(ran))
        yield from some()

    ran: list[int] = []
    found = exposition(computed)
    scraping = asyncio.create_task(found.scrape(""))
    for _ in range(20):
        ran.append(1)
        await asyncio.sleep(0)
    assert turns[0] > 1, "the loop ran between the pause and the families"
    assert "pause" not in scraping.result().body.decode()
