"""Renders registries with the encoders of `prometheus_client`: classic text, or OpenMetrics where a scrape accepts it.

A broker with 10,000 topics has 20 MB of metrics of topics, whose encoding takes more than a second. A scrape therefore
encodes piece by piece and lets the event loop run in between. Concurrent scrapes of a registry in one format share one
response; those in two formats take turns.

    registry.collect() -> a family, or a piece of a large one -> encoder -> its lines without the repeated header
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector as Collector
from prometheus_client.registry import CollectorRegistry

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.exposition.families import PublishedCounterFamily

SKIPPED = "quire_metrics_skipped_values"
LEFT_OUT = "quire_metrics_left_out_values"
PAUSE = Metric("pause", "", "untyped")
"""A collector that computes for long yields it now and then; it is not shown. The event loop may run there."""
_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF\n"
_Encoder = Callable[[Collector], bytes]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The response to one scrape, or to several at a time."""

    body: bytearray
    content_type: str


@dataclass(slots=True)
class _Rendering:
    """A response that is being made."""

    task: asyncio.Task[Scrape]
    waiting: int = 0


class Exposition:
    """The metrics of a process or of one server object. Collectors register with `registry`.

    A collector may yield a large family in pieces, one directly after the other: see `families.pieces`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turn = asyncio.Lock()
        self._renderings: dict[str, _Rendering] = {}

    async def scrape(self, accept: str) -> Scrape:
        """Collect and encode in the format that the Accept header asks for.

        A scrape during another one of the same format gets its response. A response that no scrape waits for any
        more is given up.
        """
        encode, content_type = _negotiated(accept)
        rendering = self._renderings.get(content_type)
        if rendering is None:
            task = asyncio.get_running_loop().create_task(self._render(encode, content_type))
            rendering = self._renderings[content_type] = _Rendering(task)
        rendering.waiting += 1
        try:
            return await asyncio.shield(rendering.task)
        finally:
            rendering.waiting -= 1
            if self._renderings.get(content_type) is rendering and (rendering.task.done() or not rendering.waiting):
                del self._renderings[content_type]
            if not rendering.waiting:
                rendering.task.cancel()

    async def _render(self, encode: _Encoder, content_type: str) -> Scrape:
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
    """Yield the lines of each family or piece, then those of the values that it omits, then the end."""
    skipped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    before, shown = "", 0
    for family in families:
        if shown + len(family.samples) > limits.SCRAPE_SAMPLES_MAX:
            left_out[family.name] += len(family.samples)
            yield b""
        elif family is not PAUSE and (lines := _lines(family, encode, skipped, openmetrics=openmetrics)):
            yield _without_header(lines) if family.name == before else lines
            before = family.name
            shown += len(family.samples)
        else:
            yield b""
    for name, text, omitted in (
        (SKIPPED, "values omitted from this response, by metric", skipped),
        (LEFT_OUT, "values omitted because the response would have too many, by metric", left_out),
    ):
        if omitted:
            counts = GaugeMetricFamily(name, text, labels=["metric"])
            for metric, count in omitted.items():
                counts.add_metric([metric], count)
            yield _lines(counts, encode, skipped, openmetrics=openmetrics)
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
