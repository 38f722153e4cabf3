"""The folder of the index on the real disk: opens it, detects an unusable index, rebuilds and replaces it.

Owns each step from the folder on disk to an index that the storage can trust. RocksDB is native code and may crash or
hang on damaged files, so risky work runs in a child process (`rebuild_child`): every rebuild, and a check after a start
that died while it opened the index, which a marker file shows. A child that dies, or hangs in that check, proves
damage. Never deletes an index before its replacement is complete.

    <index>.opening   exists while the index is being opened
    <index>.new       an unfinished rebuild; worthless until it is renamed
    <index>.old       the index that a rebuild replaced; removed once the new one is in place
"""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, QuireError, StartupError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import LIMBO_KEY, LOGS_END, LOGS_START, STATES_END, STATES_START, STORE_KEY
from quire_bookie.storage.formats.log_catalog import decode_store_state
from quire_bookie.storage.index.index_commits import LOG_SUFFIX, PROOF_NAME, REBUILD_REMEDY, read_proof
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore, remove_database
from quire_bookie.storage.logs.log_directories import home_of
from quire_bookie.storage.rebuilding.rebuild import Progress, RebuildReport, remove_lost_proof
from quire_bookie.storage.rebuilding.rebuild_child import report_of

_log = logging.getLogger("quire.storage.index")
_LINE_BYTES_MAX = 64 << 20
_CHILD = "quire_bookie.storage.rebuilding.rebuild_child"


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """The path of a bookie's index, and the ledger folders whose entry logs it names."""

    path: str
    directories: tuple[str, ...]
    cache_bytes: int


async def open_index(disk: Disk, place: IndexPlace, *, rebuild_on_damage: bool = False) -> IndexStore:
    """Open the index, or create one if the folders are empty.

    DamagedError, StartupError: the index is damaged, missing or older than the logs; the message names the remedy. With
    `rebuild_on_damage` it is rebuilt first, which takes as long as reading all entry logs.
    """
    fault = await _fault_of_opening(disk, place)
    if fault is None:
        try:
            index = await _open_marked(disk, place)
        except DamagedError as error:
            fault = _reason(error)
        else:
            try:
                fault = await why_unusable(disk, index, place.directories)
            except BaseException:
                await index.close()
                raise
            if fault is None:
                return index
            await index.close()
    if not rebuild_on_damage:
        raise DamagedError(place.path, 0, f"{fault}; {REBUILD_REMEDY}, or set rebuildIndexOnDamage")
    _log.error("rebuilding the index from the entry logs: %s", fault)
    report = await rebuild_in_place(disk, place)
    _log.warning("the index was rebuilt: %s", summary(report))
    return await _open_marked(disk, place)


async def open_as_it_is(place: IndexPlace) -> IndexStore:
    """Open or create the index without comparing it with the files beside it. DamagedError, StartupError."""
    return await RocksIndexStore.open(place.path, cache_bytes=place.cache_bytes)


async def why_unusable(disk: Disk, index: IndexStore, directories: Sequence[str]) -> str | None:
    """Return why an open index contradicts the files beside it; None if it does not."""
    names = {name for each in directories if await disk.exists(each) for name in await disk.list_dir(each)}
    logs = sum(name.endswith(LOG_SUFFIX) for name in names)
    try:
        value = await index.get(STORE_KEY)
        state = None if value is None else decode_store_state(value)
        await _read_start_keys(index)
    except DamagedError as error:
        return _reason(error)
    if state is None:
        return f"it is missing or empty, but there are {logs} entry logs" if logs or PROOF_NAME in names else None
    if PROOF_NAME not in names:
        return None  # the storage checks this itself
    path = f"{await home_of(disk, directories)}/{PROOF_NAME}"
    proof = await read_proof(disk, path)
    if proof.storage_uuid != state.storage_uuid:
        return f"it belongs to another bookie than {path}: restore the right one"
    if proof.number > state.number:
        return f"it is at commit {state.number}, but {proof.number} was durable"
    return None


async def _read_start_keys(index: IndexStore) -> None:
    """Read the few keys that the storage needs to open. DamagedError."""
    await index.get(LIMBO_KEY)
    async for _pair in index.scan(LOGS_START, LOGS_END):
        continue
    await index.last_at_or_below(STATES_END, STATES_START)


async def rebuild_in_place(
    disk: Disk,
    place: IndexPlace,
    *,
    accept_limbo: bool = False,
    limbo_bounds: Sequence[LedgerId] = (),
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild the index in a child process and replace the current one. The caller has locked the folders.

    StartupError: refused, see `rebuild.rebuild_index`. Can be repeated after an interruption at any point.
    """
    home = await home_of(disk, place.directories)
    new, old = f"{place.path}.new", f"{place.path}.old"
    request = {
        "do": "rebuild",
        "index": new,
        "directories": list(place.directories),
        "home": home,
        "cache_bytes": place.cache_bytes,
        "accept_limbo": accept_limbo,
        "limbo_bounds": list(limbo_bounds),
    }
    await disk.make_dirs(place.path.rpartition("/")[0])
    await remove_database(new)
    report = report_of(await _ask_child(request, progress))
    await remove_lost_proof(disk, home, report)
    await remove_database(old)
    folder = place.path.rpartition("/")[0]
    if await disk.exists(place.path):
        await disk.rename(place.path, old)
    await disk.rename(new, place.path)
    await disk.sync_dir(folder)
    await remove_database(old)
    if await disk.exists(_marker(place)):
        await disk.remove(_marker(place))
    return report


def summary(report: RebuildReport) -> str:
    """Return a report of one line, for logs and terminals."""
    parts = [f"{report.ledgers} ledgers with {report.entries} entries from {report.logs} entry logs"]
    if report.losses:
        parts.append(f"entries of {len({loss[0] for loss in report.losses})} ledgers are damaged")
    if report.fenced:
        parts.append(f"{len(report.fenced)} ledgers are fenced")
    if report.without_key:
        parts.append(f"the keys of {len(report.without_key)} ledgers are unknown until read from the metadata")
    if report.limbo:
        parts.append("the bookie is in limbo")
    return "; ".join(parts)


async def _open_marked(disk: Disk, place: IndexPlace) -> RocksIndexStore:
    await disk.make_dirs(place.path.rpartition("/")[0])
    await disk.replace_file(_marker(place), b"the index is being opened\n")
    try:
        return await RocksIndexStore.open(place.path, cache_bytes=place.cache_bytes)
    finally:
        await disk.remove(_marker(place))


async def _fault_of_opening(disk: Disk, place: IndexPlace) -> str | None:
    """After a start that died while opening the index, check in a child process; return the fault, if any."""
    if not await disk.exists(_marker(place)):
        return None
    _log.warning("an earlier start died while opening the index %s; checking it in a child process first", place.path)
    try:
        request = {"do": "check", "index": place.path, "cache_bytes": place.cache_bytes}
        await _ask_child(request, None, silence_s=limits.INDEX_CHECK_SILENCE_S)
    except (DamagedError, StartupError) as error:
        return _reason(error)
    return None


def _reason(error: QuireError) -> str:
    """Return the text of an error without the path of the index, which the final message adds."""
    return str(error).rpartition(": damaged at offset 0: ")[2]


def _marker(place: IndexPlace) -> str:
    return f"{place.path}.opening"


async def _ask_child(
    request: dict[str, Any], progress: Progress | None, silence_s: float | None = None
) -> dict[str, Any]:
    """Run one request in a child, which ends when this process ends. StartupError, DamagedError with the reason.

    A child that writes no line for `silence_s` hangs: it is killed, and counts as damage too.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _CHILD,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    assert child.stdin is not None and child.stdout is not None
    response: dict[str, Any] = {}
    try:
        child.stdin.write(json.dumps(request).encode() + b"\n")
        await child.stdin.drain()
        while line := await asyncio.wait_for(child.stdout.readline(), silence_s):
            response = json.loads(line)
            if "progress" in response and progress is not None:
                progress(*response["progress"])
        code = await child.wait()
    except TimeoutError as error:
        reason = f"its child process made no progress for {silence_s:g} s"
        raise DamagedError(request["index"], 0, reason) from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if response.get("refused"):
        raise StartupError(response["refused"])
    if code or "done" not in response:
        reason = response.get("damaged") or f"its child process ended with {_ending(code)}"
        raise DamagedError(request["index"], 0, reason)
    done: dict[str, Any] = response["done"]
    return done


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
