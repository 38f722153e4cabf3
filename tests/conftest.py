"""What holds for every test: how hypothesis behaves, and when and in which process it runs where several share them."""

import gc
import os
from collections.abc import Iterator

import pytest
from aiohttp import web_app
from hypothesis import settings

settings.register_profile("quire", deadline=None, print_blob=True)  # it prints what repeats a failure
settings.load_profile("quire")


THRESHOLDS = gc.get_threshold()
LONGEST = ("upstream", "spark ")
"""Beginnings of groups that take minutes: begun last, one would keep one process busy while the others have nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who shares a cluster, a JVM or a standalone runs in one process: each process would start its own."""
    for item in items:
        shared = _shared_place(item)
        if shared and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(shared))
    items.sort(key=_takes_minutes, reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Report the groups of the tests to xdist's scheduler, then exempt the tests from garbage collection.

    xdist 3.8 appends the group to `_nodeid`, which pytest 9.2 does not read: each test would be a group of its own.
    The suffix is only in what the process reports here: the results, and so `--last-failed`, have the plain ids.

    The tests live to the end, and each full garbage collection would scan them. The second call of `collect` makes full
    ones frequent: there is one when a quarter of what the last one left is new.
    """
    plain = {item: item.id for item in session.items}
    if session.config.getoption("loadgroup", False):
        for item in session.items:
            group = item.get_closest_marker("xdist_group")
            if group is not None:
                item._id = type(item.id).parse(f"{item.nodeid}@{group.args[0]}")
                assert item.nodeid.endswith(f"@{group.args[0]}"), "pytest keeps the ids of tests elsewhere now"
    yield
    for item, known in plain.items():
        item._id = known
    _collect_and_exempt()
    gc.collect()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two processes more than there are cores: tests that start servers wait for them half of their time."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Free what tests leave behind: the cache in which aiohttp keeps the handlers of servers, and so their bookies.

    Only after the protocol, pytest has let go of the values of the last test's fixtures. A test that runs a service in
    this process leaves the service's thresholds of garbage collection, with which later tests took gigabytes.
    """
    result = yield
    gc.set_threshold(*THRESHOLDS)
    web_app._cached_build_middleware.cache_clear()
    if nextitem is None or item.path != nextitem.path:
        _collect_and_exempt()
    return result


def _collect_and_exempt() -> None:
    """Collect garbage, and exempt the rest from further collections: modules, caches and results live to the end."""
    gc.collect()
    gc.freeze()


def _takes_minutes(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    return group is not None and group.args[0].startswith(LONGEST)


def _shared_place(item: pytest.Item) -> str:
    """The folder or the file of the widest fixture of ours that outlives this test; empty without one."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  not public, and nothing else knows
    ours = [each for found in fixtures.values() for each in found if each.baseid.startswith("tests")]
    folders = [each.baseid for each in ours if each.scope == "session"]
    files = [each.baseid for each in ours if each.scope in ("module", "package")]
    return min([*folders], key=len) if folders else min(files, default="", key=len)
