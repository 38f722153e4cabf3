"""Renders registries with the encoders of `prometheus_client`: classic text, or OpenMetrics where a scrape accepts it.

A broker with 10,000 topics has 20 MB of metrics, whose encoding takes more than a second. A scrape therefore encodes
piece by piece and lets the event loop run in between; the scrapes of a registry take turns.

    registry.collect() -> a family, or a piece of a large one -> encoder -> its lines without the repeated header
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector as Collector
from prometheus_client.registry import CollectorRegistry

from quire_bookie import limits
from quire_bookie.exposition.families import PublishedCounterFamily

SKIPPED = "quire_metrics_skipped_values"
_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF\n"
_Encoder = Callable[[Collector], bytes]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The response to one scrape."""

    body: bytearray
    content_type: str


class Exposition:
    """The metrics of a process or of one server object. Collectors register with `registry`.

    A collector may yield a large family in pieces, one directly after the other: see `families.pieces`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turn = asyncio.Lock()

    async def scrape(self, accept: str) -> Scrape:
        """Collect and encode in the format that the Accept header asks for."""
        encode, content_type = _negotiated(accept)
        loop = asyncio.get_running_loop()
        found = bytearray()  # grows in place; joining 20 MB of pieces at the end would take 15 ms
        async with self._turn:
            began_s = loop.time()
            for lines in _encoded(self.registry.collect(), encode, openmetrics=content_type.startswith(_OPENMETRICS)):
                found += lines
                if loop.time() - began_s >= limits.SCRAPE_SLICE_S:
                    await asyncio.sleep(0)
                    began_s = loop.time()
        return Scrape(found, content_type)


def classic_text(families: Iterable[Metric]) -> str:
    """Return the classic text of these families, for a file."""
    return b"".join(_encoded(families, generate_latest, openmetrics=False)).decode()


def _negotiated(accept: str) -> tuple[_Encoder, str]:
    """Return encoder and content type. A malformed header gets the classic format."""
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the library cannot compare a version such as `abc`
        return choose_encoder("")
    if not content_type.isascii():  # the library repeats the version that the client sent
        return choose_encoder("")
    if isinstance(encode, partial) and encode.keywords.get("escaping") == UNDERSCORES:
        # Our names need no escaping, so the text is the same; the library is a third faster.
        encode = partial(encode, escaping=ALLOWUTF8)
    return encode, content_type


class _One:
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _encoded(families: Iterable[Metric], encode: _Encoder, *, openmetrics: bool) -> Iterator[bytes]:
    """Yield the lines of each family or piece, then those of the values that no double can hold, then the end."""
    skipped: Counter[str] = Counter()
    before = ""
    for family in families:
        if lines := _lines(family, encode, skipped, openmetrics=openmetrics):
            yield _without_header(lines) if family.name == before else lines
            before = family.name
    if skipped:
        family = GaugeMetricFamily(SKIPPED, "values omitted from this response, by metric", labels=["metric"])
        for name, count in skipped.items():
            family.add_metric([name], count)
        yield _lines(family, encode, skipped, openmetrics=openmetrics)
    if openmetrics:
        yield _END


def _lines(family: Metric, encode: _Encoder, skipped: Counter[str], *, openmetrics: bool) -> bytes:
    if openmetrics and isinstance(family, PublishedCounterFamily):
        family = family.without_type()
    shown = [sample for sample in family.samples if _fits(sample.value)]
    if len(shown) < len(family.samples):
        skipped.update(sample.name for sample in family.samples if not _fits(sample.value))
        family.samples = shown
        if not shown:
            return b""
    return encode(_One(family)).removesuffix(_END)


def _without_header(lines: bytes) -> bytes:
    """Remove `# HELP` and `# TYPE`, which start the lines of every piece."""
    return lines.split(b"\n", 2)[2]


def _fits(value: object) -> bool:
    """Return whether a double can hold the value."""
    if not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
