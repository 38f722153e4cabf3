"""Measures how long admin requests hold the event loop of a standalone with many topics.

    python -m benchmarks.loop_stalls [--topics 10000] [--per-topic]

Creates the topics with one subscription each, then sends each request and prints its time, the bytes of its answer,
and the longest stall of the loop meanwhile: that of a probe of /healthz every 2 ms, which includes the machine's own
delays, and that which the process has measured since its start.
"""

import argparse
import asyncio
import re
import time

import aiohttp

from benchmarks.servers import standalone

URL = "http://127.0.0.1:8087"
NAMESPACE = "/admin/v2/persistent/public/default"
CREATIONS_AT_ONCE = 50
ATTEMPTS, RETRY_S = 20, 0.25
SETTLE_S = 0.2
PROBE_PAUSE_S = 0.002
ROUNDS = 3
REQUESTS = (
    "/healthz",
    "/metrics",
    NAMESPACE,
    f"{NAMESPACE}/topic-0/stats",
    "/admin/v2/namespaces/public/default/topics",
    "/admin/quire/namespaces/public/default",
    "/admin/quire/topics",
    "/admin/quire/stats",
)


async def _put(session: aiohttp.ClientSession, path: str) -> None:
    """Create something; again after 503, since bundles are split meanwhile."""
    for _ in range(ATTEMPTS):
        async with session.put(path) as answer:
            if answer.status < 400:
                return
            text = f"{path}: {answer.status} {await answer.text()}"
        if answer.status != 503:
            break
        await asyncio.sleep(RETRY_S)
    raise SystemExit(text)


async def create(session: aiohttp.ClientSession, count: int) -> None:
    """Create the topics."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            topic = f"{URL}{NAMESPACE}/topic-{number}"
            for path in (topic, f"{topic}/subscription/s"):
                await _put(session, path)

    await asyncio.gather(*(some() for _ in range(CREATIONS_AT_ONCE)))


async def probe(session: aiohttp.ClientSession, took_s: list[float]) -> None:
    """Ask for the health until cancelled, and note how long each answer took."""
    while True:
        began_s = time.perf_counter()
        async with session.get(f"{URL}/healthz") as answer:
            await answer.read()
        took_s.append(time.perf_counter() - began_s)
        await asyncio.sleep(PROBE_PAUSE_S)


async def longest_stall_ms(session: aiohttp.ClientSession) -> float | None:
    """Return the longest stall that the process has measured."""
    async with session.get(f"{URL}/metrics") as answer:
        found = re.search(r"^quire_loop_stall_max_seconds(?:{.*})? (\S+)$", await answer.text(), re.MULTILINE)
    return None if found is None else float(found[1]) * 1000


async def measure(count: int) -> None:
    """Create the topics, then measure each request."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        began_s = time.perf_counter()
        await create(session, count)
        print(f"{count} topics in {time.perf_counter() - began_s:.1f} s, stalls {await longest_stall_ms(session)} ms")
        for path in REQUESTS:
            for _ in range(ROUNDS):
                waited_s: list[float] = []
                probing = asyncio.create_task(probe(session, waited_s))
                await asyncio.sleep(SETTLE_S)
                began_s = time.perf_counter()
                async with session.get(f"{URL}{path}") as answer:
                    size = sum([len(chunk) async for chunk in answer.content.iter_any()])
                took_s = time.perf_counter() - began_s
                await asyncio.sleep(SETTLE_S)
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
                stall_ms = await longest_stall_ms(session)
                print(
                    f"{path}: {answer.status}, {took_s * 1000:.0f} ms, {size:,} bytes, "
                    f"longest probe {max(waited_s, default=0.0) * 1000:.0f} ms, stall {stall_ms} ms"
                )


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--per-topic", action="store_true", help="metrics of each topic")
    options = parser.parse_args()
    extra = ("--set", "exposeTopicLevelMetricsInPrometheus=true") if options.per_topic else ()
    with standalone(extra):
        asyncio.run(measure(options.topics))


if __name__ == "__main__":
    main()
