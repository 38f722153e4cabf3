"""Tests starts and stops of a bookie's folders in every mode, with power cuts, killed processes and lost volumes.

The rule: an acknowledged entry is readable, or the response is *unknown*; it is never *no such entry*.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field, replace

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import (
    DamagedError,
    DiskFullError,
    MetadataUnavailableError,
    QuireError,
    StartupError,
    UnknownLedgerStateError,
)
from quire_bookie.limits import KIB, MIB
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.opening import BookieData, open_data
from quire_bookie.server.start.run_notes import RUN_FILE
from quire_bookie.server.start.storage_folders import StorageFolders
from quire_bookie.server.start.storage_identity import ClaimOptions, claim_storage
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.sim.disk import SimCrashError, SimDisk, Survival
from tests.sim.index_store import SimIndexStore
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.sampling import one_in

SYNC = JournalSettings(file_bytes=64 * KIB, group_bytes_max=16 * KIB, spare_files_max=2, reserved_bytes=0)
NO_SYNC, NO_JOURNAL = replace(SYNC, sync_data=False), replace(SYNC, write_data=False)
SETTINGS = BookieSettings(
    data_dir="/data",
    journal_dirs=("/j0", "/j1"),
    ledger_dirs=("/l0", "/l1"),
    journal=SYNC,
    storage=StorageSettings(write_cache_bytes=64 * KIB, entry_log_bytes_max=2 * MIB, reserved_bytes=0),
)
LEDGERS = range(4)


def content(ledger: int, entry: int) -> bytes:
    """Return the content of an entry, with the header that storage reads."""
    head = ledger.to_bytes(8, "big") + entry.to_bytes(8, "big") + (entry - 1).to_bytes(8, "big", signed=True)
    return head + bytes(8) + random.Random(ledger << 20 | entry).randbytes(300)


@dataclass
class Machine:
    """Holds the disk and metadata that survive a process, and the entries acknowledged to clients."""

    disk: SimDisk = field(default_factory=SimDisk)
    metadata: SimMetadata = field(default_factory=lambda: SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    settings: BookieSettings = SETTINGS
    data: BookieData | None = None
    acked: set[tuple[int, int]] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    next: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LEDGERS, 0))

    def __post_init__(self) -> None:
        for ledger in LEDGERS:
            self.metadata.write(ledger_path(LedgerId(ledger)), b"", None)

    async def start(self, journal: JournalSettings | None = None, **changes: object) -> BookieData:
        """Open the folders as a process does."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        if journal is not None:
            settings = replace(settings, journal=journal)
        store = SimMetadataStore(self.metadata)
        folders = StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir)
        options = ClaimOptions(settings.allow_storage_expansion, settings.accept_lost_volumes)
        chance = SystemChance()
        identity = await claim_storage(
            self.disk, store, folders, instance_id="cluster", host_name="b", chance=chance, options=options
        )
        data = BookieData(identity)
        disk = self.disk

        async def open_index(path: str) -> IndexStore:
            return SimIndexStore(disk, path)

        try:
            await open_data(
                settings,
                data,
                metadata=store,
                disk=disk,
                clock=SystemClock(),
                chance=chance,
                open_index=open_index,
            )
        except BaseException:
            with contextlib.suppress(OSError):
                await data.close()
            raise
        self.data = data
        return data

    async def add(self, count: int) -> None:
        """Add `count` entries to each ledger that is not fenced; return once they are answered."""
        data = self.data
        assert data is not None and data.storage is not None and data.journals is not None
        for _ in range(count):
            for ledger in LEDGERS:
                info = data.storage.cached_ledger(LedgerId(ledger)) or await data.storage.load_ledger(LedgerId(ledger))
                if info is None:
                    info = data.storage.create_ledger(LedgerId(ledger), b"key")
                    data.journals.append_master_key(LedgerId(ledger), b"key")
                if info.fenced:
                    continue
                entry = self.next[ledger]
                self.next[ledger] += 1
                body = content(ledger, entry)
                run = Run(LedgerId(ledger), EntryId(entry), [body], EntryId(entry - 1), len(body))
                data.storage.put(info, run)
                data.journals.append_run(run, self._acked(ledger, entry))
            await self.forced()

    def _acked(self, ledger: int, entry: int):  # type: ignore[no-untyped-def]
        def done(error: BaseException | None) -> None:
            if error is None:
                self.acked.add((ledger, entry))

        return done

    async def fence(self, ledger: int) -> None:
        """Fence a ledger; return once that is answered."""
        data = self.data
        assert data is not None and data.storage is not None and data.journals is not None
        info = await data.storage.load_ledger(LedgerId(ledger))
        assert info is not None
        data.storage.fence(info)
        data.journals.append_fence(LedgerId(ledger), None)
        await self.forced()
        self.fenced.add(ledger)

    async def forced(self) -> None:
        """Wait until all appended records are durable. SimCrashError if they never become durable."""
        assert self.data is not None and self.data.journals is not None
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.data.journals.append_force(ended.set_result)
        if (error := await ended) is not None:
            raise error

    async def stop(self) -> None:
        """Stop cleanly."""
        assert self.data is not None
        data, self.data = self.data, None
        await data.close()

    async def cut(self, survival: Survival = "none", seed: int = 0) -> None:
        """Cut the power of the machine."""
        await self._gone(self.disk.crash(survival, seed))

    async def kill(self) -> None:
        """Kill only the process."""
        await self._gone(self.disk.kill())

    async def _gone(self, remaining: SimDisk) -> None:
        """Close the dead process's resources without effect on the disk that remains."""
        data, self.data = self.data, None
        if data is not None:
            with contextlib.suppress(OSError):
                await data.close()
        self.disk = remaining

    async def missing(self) -> set[tuple[int, int]]:
        """Return acknowledged entries that are *unknown* now. Fails if one is denied, or a fence is lost."""
        assert self.data is not None and self.data.storage is not None
        storage = self.data.storage
        unknown: set[tuple[int, int]] = set()
        for ledger, entry in self.acked:
            try:
                assert bytes(await storage.read(LedgerId(ledger), EntryId(entry))) == content(ledger, entry)
            except UnknownLedgerStateError:
                unknown.add((ledger, entry))
        for ledger in self.fenced:
            info = await storage.load_ledger(LedgerId(ledger))
            assert info.fenced if info is not None else storage.is_limbo(LedgerId(ledger))
        return unknown

    @property
    def in_limbo(self) -> bool:
        assert self.data is not None and self.data.storage is not None
        return self.data.storage.in_limbo

    async def lose(self, *folders: str) -> None:
        """Empty these volumes."""
        disk = self.disk
        for name in [name for name in disk._names if name.startswith(tuple(f"{folder}/" for folder in folders))]:
            del disk._names[name]
            disk._durable_names.pop(name, None)
        for path in [path for path in disk.indexes if path.startswith(folders)]:
            del disk.indexes[path]


@pytest.fixture
def machine() -> Machine:
    return Machine()


# ---- modes


@pytest.mark.parametrize("journal", [NO_SYNC, NO_JOURNAL])
async def test_a_clean_stop_of_a_risky_mode_leaves_nothing_at_risk(machine: Machine, journal: JournalSettings) -> None:
    for mode in (journal, journal, SYNC):
        await machine.start(mode)
        await machine.add(3)
        await machine.stop()
        await machine.cut()
    await machine.start(SYNC)
    assert not machine.in_limbo
    assert await machine.missing() == set()


@pytest.mark.parametrize("after", [SYNC, NO_SYNC, NO_JOURNAL])
async def test_without_syncs_a_killed_process_loses_nothing(machine: Machine, after: JournalSettings) -> None:
    await machine.start(NO_SYNC)
    await machine.add(3)
    await machine.fence(1)
    await machine.kill()
    await machine.start(after)
    assert not machine.in_limbo
    assert await machine.missing() == set()
    await machine.cut()
    await machine.start(SYNC)
    assert machine.in_limbo == (after is not SYNC), "recovered entries are made durable before they are served"
    assert await machine.missing() == set()


@pytest.mark.parametrize("after", [SYNC, NO_SYNC, NO_JOURNAL])
async def test_without_syncs_a_power_cut_leads_into_limbo_in_whatever_mode_comes_next(
    machine: Machine, after: JournalSettings
) -> None:
    await machine.start(NO_SYNC)
    await machine.add(3)
    await machine.fence(1)
    await machine.cut()
    await machine.start(after)
    assert machine.in_limbo
    assert await machine.missing() == machine.acked
    await machine.stop()
    await machine.start(SYNC)
    assert machine.in_limbo, "a clean stop does not restore lost entries"


async def test_without_a_journal_a_killed_process_is_enough_for_limbo(machine: Machine) -> None:
    await machine.start(NO_JOURNAL)
    await machine.add(3)
    await machine.fence(2)
    await machine.kill()
    await machine.start(NO_JOURNAL)
    assert machine.in_limbo
    assert await machine.missing() == machine.acked


async def test_unsynced_runs_lead_into_limbo_if_the_boot_is_unknown(machine: Machine) -> None:
    machine.disk.boot = None
    await machine.start(NO_SYNC)
    await machine.add(1)
    await machine.kill()
    await machine.start(NO_SYNC)
    assert machine.in_limbo
    assert await machine.missing() == set(), "existing entries are served nevertheless"


async def test_a_bookie_that_syncs_has_no_note_and_never_enters_limbo(machine: Machine) -> None:
    await machine.start(SYNC)
    await machine.add(3)
    await machine.fence(1)
    await machine.cut("random", 3)
    await machine.start(SYNC)
    assert not machine.in_limbo
    assert await machine.missing() == set()
    assert not await machine.disk.exists(f"/l0/current/{RUN_FILE}")


async def test_the_risk_is_noted_before_the_first_response(machine: Machine) -> None:
    await machine.start(NO_JOURNAL)
    assert b"unwritten yes" in machine.disk.crash().content(f"/l0/current/{RUN_FILE}")


async def test_without_the_metadata_there_is_no_start_in_limbo_and_the_loss_is_not_forgotten(machine: Machine) -> None:
    await machine.start(NO_SYNC)
    await machine.add(1)
    await machine.cut()
    store = machine.metadata
    steps = machine.disk.steps
    with pytest.raises(MetadataUnavailableError):
        await _start_without_listing(machine)
    assert machine.disk.steps == steps, "the folders are unchanged"
    assert store is machine.metadata
    await machine.start(NO_SYNC)
    assert machine.in_limbo


async def _start_without_listing(machine: Machine) -> None:
    real = SimMetadataStore.scan

    def scan(self: SimMetadataStore, *_: object, **__: object) -> None:
        raise MetadataUnavailableError("away")

    SimMetadataStore.scan = scan  # type: ignore[assignment, method-assign]
    try:
        await machine.start(NO_SYNC)
    finally:
        SimMetadataStore.scan = real  # type: ignore[method-assign]


@pytest.mark.parametrize("journal", [NO_SYNC, NO_JOURNAL])
async def test_a_start_that_fails_before_limbo_is_durable_forgets_nothing(
    machine: Machine, journal: JournalSettings
) -> None:
    await machine.start(journal)
    await machine.add(1)
    await machine.cut()
    machine.disk.fail_next("replace", "limbo", DiskFullError("no space"))
    with pytest.raises(DiskFullError):
        await machine.start(journal)
    await machine.start(SYNC)
    assert machine.in_limbo
    assert await machine.missing() == machine.acked


async def test_a_ledger_that_is_created_after_the_start_is_not_in_limbo(machine: Machine) -> None:
    await machine.start(NO_SYNC)
    await machine.add(1)
    await machine.cut()
    data = await machine.start(NO_SYNC)
    assert data.storage is not None
    assert data.storage.is_limbo(LedgerId(max(LEDGERS)))
    assert not data.storage.is_limbo(LedgerId(max(LEDGERS) + 1))


@one_in(5)
@pytest.mark.parametrize("survival", ["none", "all", "random"])
@pytest.mark.parametrize("journal", [SYNC, NO_SYNC, NO_JOURNAL])
async def test_a_power_cut_at_any_step_never_makes_an_acknowledged_entry_absent(
    journal: JournalSettings, survival: Survival, every: int
) -> None:
    for at in range(1, 400, every):
        machine = Machine()
        machine.disk.crash_after(at)
        finished = await _live(machine, journal)
        await machine.cut(survival, at)
        machine.disk.crash_after(at % 23)  # the next start crashes, too
        with contextlib.suppress(OSError, QuireError):
            await machine.start(journal)
        assert machine.disk.crashed or machine.data is not None
        await machine.cut(survival, at + 1)
        await machine.start(SYNC)
        unknown = await machine.missing()
        assert not unknown or journal is not SYNC
        await machine.stop()
        if finished:
            return
    raise AssertionError("the runs never ended")


async def _live(machine: Machine, journal: JournalSettings) -> bool:
    """Perform two runs with a clean stop between; return whether both ended."""
    try:
        await machine.start(journal)
        await machine.add(2)
        await machine.fence(3)
        assert machine.data is not None and machine.data.storage is not None
        await machine.data.storage.flush()
        await machine.add(2)
        await machine.stop()
        await machine.start(journal)
        await machine.add(1)
        await machine.stop()
    except (SimCrashError, QuireError, OSError):
        assert machine.disk.crashed
        return False
    return True


# ---- lost volumes


@pytest.mark.parametrize("lost", ["/j0", "/j1", "/l0", "/l1"])
async def test_a_lost_volume_is_refused_and_then_accepted_into_limbo(machine: Machine, lost: str) -> None:
    await machine.start()
    await machine.add(3)
    await machine.fence(1)
    await machine.cut()
    await machine.lose(lost)
    for _ in range(2):
        with pytest.raises(StartupError, match=f"the folder {lost} of bookie"):
            await machine.start()
    await machine.start(accept_lost_volumes=True)
    assert machine.in_limbo
    unknown = await machine.missing()
    if lost.startswith("/j"):
        assert unknown == {(ledger, entry) for ledger, entry in machine.acked if ledger % 2 == int(lost[-1])}
    await machine.stop()
    await machine.start()
    assert machine.in_limbo, "the loss is accepted once, and remembered"
    assert await machine.missing() == unknown


@pytest.mark.parametrize("lost", ["/l0", "/l1"])
async def test_entries_of_surviving_logs_are_served_after_a_ledger_volume_was_lost(machine: Machine, lost: str) -> None:
    await machine.start()
    await machine.add(3)
    await machine.stop()
    await machine.cut()
    where = {path.rpartition("/")[0] for path in machine.disk._names if path.endswith(".qlog")}
    await machine.lose(lost)
    await machine.start(accept_lost_volumes=True)
    assert machine.in_limbo
    unknown = await machine.missing()
    assert unknown == (machine.acked if where == {lost} else set())


async def test_entries_in_the_journal_are_kept_although_the_keys_were_lost_with_the_volume(machine: Machine) -> None:
    await machine.start()
    await machine.add(2)
    assert machine.data is not None and machine.data.storage is not None
    await machine.data.storage.flush()  # the journal no longer contains the keys from here on
    flushed = set(machine.acked)
    await machine.add(2)
    await machine.cut()
    (where,) = {path.rpartition("/")[0] for path in machine.disk._names if path.endswith(".qlog")}
    await machine.lose(where)
    await machine.start(accept_lost_volumes=True)
    assert await machine.missing() == flushed
    await machine.stop()
    await machine.start()
    assert await machine.missing() == flushed
    assert machine.data is not None and machine.data.storage is not None
    assert await machine.data.storage.ledgers_without_key() == list(LEDGERS)


@pytest.mark.parametrize("survival", ["none", "random"])
async def test_the_note_of_an_unsynced_run_may_be_lost_with_its_volume(machine: Machine, survival: Survival) -> None:
    await machine.start(NO_SYNC)
    await machine.add(3)
    assert machine.data is not None and machine.data.storage is not None
    await machine.data.storage.flush()
    await machine.add(3)
    await machine.cut(survival, 5)
    await machine.lose("/l0")
    await machine.start(accept_lost_volumes=True)
    assert machine.in_limbo
    unknown = await machine.missing()
    await machine.stop()
    await machine.start()
    assert await machine.missing() == unknown


async def test_a_volume_may_be_lost_before_there_is_any_ledger(machine: Machine) -> None:
    for ledger in LEDGERS:
        machine.metadata.remove(ledger_path(LedgerId(ledger)))
    await machine.start()
    await machine.stop()
    await machine.cut()
    await machine.lose("/l0")
    await machine.start(accept_lost_volumes=True)
    await machine.stop()
    await machine.start()
    await machine.add(1)
    assert machine.acked == {(ledger, 0) for ledger in LEDGERS}
    assert await machine.missing() == set()


async def test_losing_everything_but_the_metadata_is_a_new_bookie(machine: Machine) -> None:
    first = (await machine.start()).identity.bookie
    await machine.add(1)
    await machine.cut()
    await machine.lose("/j0", "/j1", "/l0", "/l1")
    assert (await machine.start()).identity.bookie != first
    assert not machine.in_limbo


@one_in(3)
@pytest.mark.parametrize("lost", ["/j0", "/l0", "/l1"])
@pytest.mark.parametrize("survival", ["none", "all"])
async def test_a_crash_at_any_step_of_accepting_a_loss_still_ends_in_limbo(
    lost: str, survival: Survival, every: int
) -> None:
    for at in range(0, 200, every):
        machine = Machine()
        await machine.start()
        await machine.add(2)
        await machine.cut()
        await machine.lose(lost)
        machine.disk.crash_after(at)
        try:
            await machine.start(accept_lost_volumes=True)
            done = True
        except (OSError, QuireError):
            assert machine.disk.crashed
            done = False
        await machine.cut(survival, at)
        await machine.start(accept_lost_volumes=True)
        assert machine.in_limbo
        await machine.missing()
        await machine.stop()
        if done:
            assert at > 10
            return
    raise AssertionError("the runs never ended")


# ---- growing


async def test_a_grown_bookie_keeps_its_entries_and_uses_the_new_folders(machine: Machine) -> None:
    await machine.start(journal_dirs=("/j0",), ledger_dirs=("/l0",))
    await machine.add(3)
    await machine.cut()  # nothing is flushed: keys and entries are in the one journal
    with pytest.raises(StartupError, match="allowStorageExpansion=true"):
        await machine.start()
    await machine.start(allow_storage_expansion=True)
    assert await machine.missing() == set()
    await machine.add(3)
    assert machine.data is not None and machine.data.journals is not None
    assert all(journal.stats.records for journal in machine.data.journals.journals)
    await machine.cut()
    await machine.start()
    assert await machine.missing() == set()
    assert not machine.in_limbo


@one_in(3)
@pytest.mark.parametrize("survival", ["none", "random"])
async def test_a_crash_at_any_step_of_growing_loses_nothing(survival: Survival, every: int) -> None:
    for at in range(0, 200, every):
        machine = Machine()
        await machine.start(journal_dirs=("/j0",), ledger_dirs=("/l0",))
        await machine.add(2)
        await machine.cut()
        machine.disk.crash_after(at)
        try:
            await machine.start(allow_storage_expansion=True)
            await machine.add(1)
            done = True
        except (OSError, QuireError):
            assert machine.disk.crashed
            done = False
        await machine.cut(survival, at)
        await machine.start(allow_storage_expansion=True)
        assert await machine.missing() == set()
        assert not machine.in_limbo
        await machine.stop()
        if done:
            assert at > 10
            return
    raise AssertionError("the runs never ended")


# ---- the log


async def test_the_start_logs_in_one_line_what_it_recovered(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="quire.server")
    await machine.start()
    assert "nothing to recover" in caplog.text
    await machine.add(3)
    await machine.cut()
    caplog.clear()
    await machine.start()
    (line,) = [record.getMessage() for record in caplog.records if "opened its folders" in record.getMessage()]
    assert "12 entries" in line and "after an unclean end" in line


async def test_proved_damage_fails_the_start_with_the_file(machine: Machine) -> None:
    await machine.start()
    await machine.add(3)
    await machine.cut()
    machine.disk.corrupt("/j0/journal-00000001.log", 4096 + 60)
    with pytest.raises(DamagedError, match="/j0/journal-00000001"):
        await machine.start()
