"""Objects that exist when the second task of a process begins are left out of collections, once."""

import gc
import os

import pytest

from quire_jobs.source import worker_heap
from quire_jobs.source.worker_heap import task_begins


def test_from_the_second_task_on_collections_skip_existing_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_heap, "_tasks", {})
    before = gc.get_freeze_count()
    try:
        task_begins()
        assert gc.get_freeze_count() <= before, "without a freeze it only falls, by objects that are released"
        task_begins()
        frozen = gc.get_freeze_count()
        assert frozen > before
        later = [[number] for number in range(100)]
        task_begins()
        assert len(later) == 100 and gc.get_freeze_count() <= frozen, "only once, not at later tasks"
    finally:
        gc.unfreeze()


def test_a_fork_counts_its_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_heap, "_tasks", {})
    before = gc.get_freeze_count()
    task_begins()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    task_begins()
    assert gc.get_freeze_count() <= before
