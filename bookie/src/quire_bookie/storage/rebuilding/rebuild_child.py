"""The child process of `index_place`: reads one request from stdin, works on an index, responds on stdout.

A separate process, because RocksDB may crash on damaged files. Owns its side of the pipe: one JSON object per line,
`progress` until the last, which is `done`, `refused` (an administrator must decide) or `damaged`. Exits at once when
stdin ends, as the parent has then died.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import QuireError, StartupError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore
from quire_bookie.storage.rebuilding.rebuild import LogDamage, RebuildReport, rebuild_index

EXIT_ABANDONED = 3
PROGRESS_STEP_BYTES = 8 << 20
CHECK_STEP_KEYS = 10_000


def report_of(fields: dict[str, Any]) -> RebuildReport:
    """Return the report in a child's `done`."""
    report = RebuildReport(**fields)
    report.damage = [LogDamage(**damage) for damage in fields["damage"]]
    report.losses = [
        (LedgerId(ledger), EntryId(first), EntryId(last), entries) for ledger, first, last, entries in fields["losses"]
    ]
    return report


async def _rebuild(request: dict[str, Any]) -> dict[str, Any]:
    reported = -PROGRESS_STEP_BYTES

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if done - reported >= PROGRESS_STEP_BYTES:
            reported = done
            _send({"progress": [done, total]})

    disk = LocalDisk()
    index = await RocksIndexStore.open(request["index"], cache_bytes=request["cache_bytes"])
    try:
        report = await rebuild_index(
            disk,
            index,
            request["directories"],
            request["home"],
            chance=SystemChance(),
            accept_limbo=request["accept_limbo"],
            limbo_bounds=[LedgerId(bound) for bound in request["limbo_bounds"]],
            progress=progress,
        )
    finally:
        await index.close()
        disk.close()
    return asdict(report)


async def _check(request: dict[str, Any]) -> dict[str, Any]:
    """Open the index and read all of it. DamagedError. Reports progress, as a silent check counts as hanging."""
    index = await RocksIndexStore.open(request["index"], cache_bytes=request["cache_bytes"])
    keys = 0
    try:
        async for _pair in index.scan(b"", b"\xff" * 32):
            if keys % CHECK_STEP_KEYS == 0:
                _send({"progress": [keys, 0]})
            keys += 1
    finally:
        await index.close()
    return {"keys": keys}


async def _serve() -> None:
    request = json.loads(sys.stdin.readline())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, EXIT_ABANDONED)
    try:
        work = {"rebuild": _rebuild, "check": _check}[request["do"]]
        _send({"done": await work(request)})
    except StartupError as error:
        _send({"refused": str(error)})
    except (QuireError, OSError) as error:
        _send({"damaged": str(error)})


def _send(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve())
