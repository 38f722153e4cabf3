"""Tests of the assessment of earlier runs' notes, and that a note cannot be misread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError
from quire_bookie.server.start.run_notes import UNKNOWN_BOOT, RunNote, RunNotes, assess, decode_note, encode_note
from quire_bookie.settings.journal import JournalSettings
from tests.sim.disk import SimDisk

NO_SYNC, NO_JOURNAL = JournalSettings(sync_data=False), JournalSettings(write_data=False)
NOTES = st.builds(
    RunNote,
    unsynced_boot=st.none() | st.sampled_from(["0b5a-4c", UNKNOWN_BOOT]),
    unwritten=st.booleans(),
    modes=st.sampled_from([(), ("no-sync",), ("no-journal", "no-sync")]),
)


def test_a_run_that_syncs_leaves_no_risk() -> None:
    note = RunNote().begun(JournalSettings(), "boot")
    assert note == RunNote() and not note.risks
    assert assess(note, "another") == assess(note, None)
    assert assess(note, "boot").limbo is None


def test_a_run_without_syncs_lost_nothing_if_the_machine_did_not_restart() -> None:
    note = RunNote().begun(NO_SYNC, "boot")
    assessment = assess(note, "boot")
    assert (assessment.limbo, assessment.salvage, assessment.sync_first) == (None, False, True)


@pytest.mark.parametrize(("then", "now"), [("boot", "another"), ("boot", None), (None, "boot"), (None, None)])
def test_a_run_without_syncs_may_have_lost_anything_if_the_machine_may_have_restarted(
    then: str | None, now: str | None
) -> None:
    assessment = assess(RunNote().begun(NO_SYNC, then), now)
    assert assessment.limbo is not None and assessment.salvage and not assessment.sync_first


def test_a_run_without_a_journal_may_have_lost_anything_even_if_the_machine_did_not_restart() -> None:
    assessment = assess(RunNote().begun(NO_JOURNAL, "boot"), "boot")
    assert assessment.limbo is not None and not assessment.salvage


def test_both_risks_at_once_are_assessed() -> None:
    note = RunNote("boot", unwritten=True)
    assert assess(note, "boot").sync_first and assess(note, "boot").limbo
    assert assess(note, "another").salvage and assess(note, "another").limbo


def test_earlier_modes_stay_noted_when_nothing_is_at_risk_any_more() -> None:
    note = RunNote().begun(NO_SYNC, "boot").settled().begun(NO_JOURNAL, "boot").settled()
    assert not note.risks
    assert note.modes == ("no-journal", "no-sync")
    assert assess(note, "another").limbo is None


def test_a_note_that_was_not_assessed_cannot_be_overwritten() -> None:
    with pytest.raises(AssertionError):
        RunNote().begun(NO_SYNC, "boot").begun(NO_SYNC, "boot")


@given(NOTES)
def test_an_encoded_note_decodes_to_itself(note: RunNote) -> None:
    assert decode_note(encode_note(note), "RUN") == note


@given(NOTES, st.data())
def test_a_damaged_note_is_never_read_as_another(note: RunNote, data: st.DataObject) -> None:
    content = bytearray(encode_note(note))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedError):
        decode_note(bytes(content), "RUN")
    with pytest.raises(DamagedError):
        decode_note(bytes(content[:at]), "RUN")


async def test_a_written_note_is_durable_and_an_unchanged_one_is_not_written() -> None:
    disk = SimDisk()
    await disk.make_dirs("/l/current")
    notes = await RunNotes.open(disk, "/l")
    await notes.write(RunNote())
    assert disk.steps == 0, "a bookie that syncs has no such file"
    await notes.write(RunNote().begun(NO_SYNC, "boot"))
    disk = disk.crash()
    assert (await RunNotes.open(disk, "/l")).note == RunNote("boot", modes=("no-sync",))
