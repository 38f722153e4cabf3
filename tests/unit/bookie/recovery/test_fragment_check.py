"""Tests what a check reports of replicas that are whole, gone, incomplete, in limbo or without an answer."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quire_bookie.client.links.single_requests import ask_entries
from quire_bookie.errors import BookieUnavailableError, NoEntryListError
from quire_bookie.limits import NO_ENTRY_LIST_S
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import DigestType, EntryId, LedgerId, Segment
from quire_bookie.recovery import access
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.wire.digest import Digest
from tests.unit.bookie.recovery.small_cluster import LEDGER, QUICK, SETTINGS, SmallCluster, run


def test_replicas_that_hold_everything_are_whole() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        await cluster.write(dict.fromkeys(cluster.bookies[:3], range(20)), last=19)
        assert {report.health for report in await cluster.check()} == {Health.WHOLE}

    run(scenario)


def test_a_hole_in_the_middle_is_found_by_the_list_of_entries() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(20), b: range(20), c: [*range(5), *range(9, 20)]}, last=19)
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[a].health, reports[b].health) == (Health.WHOLE, Health.WHOLE)
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((5, 8),))
        unlisted = await cluster.check(listed=frozenset())
        assert {report.health for report in unlisted} == {Health.WHOLE}, "only ends are read then"

    run(scenario)


def test_a_missing_end_is_found_without_the_list_and_its_extent_with_it() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(20), b: range(20), c: range(15)}, last=19)
        reports = {report.bookie: report for report in await cluster.check(listed=frozenset())}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((15, 19),))

    run(scenario)


def test_a_bookie_that_never_had_the_ledger_lacks_all_of_it() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(4), b: range(4)}, last=3)
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((0, 3),))

    run(scenario)


def test_only_the_entries_of_its_write_sets_are_missed_of_a_position() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        held = {a: [0, 2, 3, 5], b: [0, 1, 3, 4], c: [1, 2, 4, 5]}
        await cluster.write(held, last=5, quorums=(2, 2))
        assert {report.health for report in await cluster.check()} == {Health.WHOLE}

    run(scenario)


def test_a_bookie_that_is_not_registered_is_gone() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        await cluster.lose(c)
        reports = {report.bookie: report.health for report in await cluster.check()}
        assert reports == {a: Health.WHOLE, b: Health.WHOLE, c: Health.GONE}

    run(scenario)


def test_a_bookie_that_does_not_answer_is_unknown_and_not_missing() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        host = cluster.place(c).host
        cluster.world.kill_bookie(host)  # its lease still runs
        reports = {report.bookie: report.health for report in await cluster.check()}
        assert reports == {a: Health.WHOLE, b: Health.WHOLE, c: Health.UNKNOWN}

    run(scenario)


def test_limbo_is_distinguished_from_missing() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(4), b: range(4), c: range(2)}, last=3)
        place = cluster.place(c)
        assert place.node is not None and place.running is not None
        await cluster.world.loop.run_on(place.node, place.running.storage.enter_limbo([LedgerId(100)]))
        reports = {report.bookie: report.health for report in await cluster.check()}
        assert reports == {a: Health.WHOLE, b: Health.WHOLE, c: Health.LIMBO}
        assert LEDGER <= 100

    run(scenario)


def test_an_entry_with_a_wrong_digest_is_found_when_all_are_verified() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        metadata = await cluster.write(dict.fromkeys((a, b), range(6)), last=5)
        handle = replace(cluster.access.handle(LEDGER, metadata), digest=Digest(DigestType.DUMMY, b""))
        good = ReplicaWriter(cluster.access.handle(LEDGER, metadata), c)
        await good.store([cluster.entry(LEDGER, entry) for entry in (0, 1, 2, 4, 5)])
        good.close()
        bad = ReplicaWriter(handle, c)
        await bad.store([cluster.entry(LEDGER, 3)])
        bad.close()
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((EntryId(3), EntryId(3)),))

    run(scenario, settings=replace(SETTINGS, verified_share=1.0))


# ---- bookies that answer no lists, as Java's DbLedgerStorage
def answer_no_lists(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> list[BookieAddress]:
    """Leave requests for lists to these hosts unanswered. Return the list of asked addresses, which grows."""
    asked: list[BookieAddress] = []

    async def silent(address: BookieAddress, ledger: LedgerId, timeout_s: float, *rest: Any) -> Any:
        asked.append(address)
        if address.host in hosts:
            await asyncio.sleep(timeout_s)
            raise NoEntryListError("no list")
        return await ask_entries(address, ledger, timeout_s, *rest)

    monkeypatch.setattr(access, "ask_entries", silent)
    return asked


def test_a_suspected_replica_without_a_list_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        answer_no_lists(monkeypatch, cluster.place(c).host)
        await cluster.write({a: range(20), b: range(20), c: [*range(5), *range(9, 20)]}, last=19)
        reports = {report.bookie: report for report in await cluster.check(suspected=frozenset({c}))}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((5, 8),))
        reports = {report.bookie: report for report in await cluster.check()}
        assert reports[c].health is Health.WHOLE, "of a replica that is not suspected only the ends are read"

    run(scenario)


def test_a_replica_without_a_list_that_lacks_an_end_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        answer_no_lists(monkeypatch, cluster.place(c).host)
        await cluster.write({a: range(20), b: range(20), c: [*range(5), *range(9, 15)]}, last=19)
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((5, 8), (15, 19)))

    run(scenario)


def test_a_replica_without_a_list_and_without_the_ledger_lacks_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        answer_no_lists(monkeypatch, cluster.place(c).host)
        await cluster.write({a: range(20), b: range(20)}, last=19)
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((0, 19),))

    run(scenario)


def test_a_bookie_that_answers_no_lists_is_asked_once_and_later_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        host = cluster.place(c).host
        asked = answer_no_lists(monkeypatch, host)
        await cluster.write(dict.fromkeys((a, b, c), range(4)), last=3)
        for _ in range(3):
            assert {report.health for report in await cluster.check()} == {Health.WHOLE}
        assert [address.host for address in asked].count(host) == 1
        await asyncio.sleep(NO_ENTRY_LIST_S)
        await cluster.check()
        assert [address.host for address in asked].count(host) == 2

    run(scenario)


# ---- bookies that answer nothing although they are registered
def test_a_suspected_replica_on_a_silent_bookie_is_unknown_and_not_read_entry_by_entry() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write(dict.fromkeys((a, b, c), range(600)), last=599)
        loop = cluster.world.loop
        loop.network.partition("outside", cluster.place(c).host)
        began_s = loop.time()
        reports = {report.bookie: report for report in await cluster.check(suspected=frozenset({c}))}
        assert {one.bookie: one.health for one in reports.values()} == {
            a: Health.WHOLE,
            b: Health.WHOLE,
            c: Health.UNKNOWN,
        }
        assert loop.time() - began_s < QUICK.read_timeout_s + SETTINGS.list_timeout_s + 5

    run(scenario)


def test_a_silent_bookie_is_waited_for_once_and_not_for_each_segment() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        segments = tuple(Segment(EntryId(first), (a, b, c)) for first in range(0, 200, 10))
        await cluster.write(dict.fromkeys((a, b, c), range(200)), last=199, segments=segments)
        loop = cluster.world.loop
        loop.network.partition("outside", cluster.place(c).host)
        began_s = loop.time()
        reports = await cluster.check()
        assert {one.health for one in reports if one.bookie == c} == {Health.UNKNOWN}
        assert {one.health for one in reports if one.bookie != c} == {Health.WHOLE}
        assert loop.time() - began_s < QUICK.read_timeout_s + SETTINGS.list_timeout_s + 5

    run(scenario)


def test_a_replica_whose_bookie_falls_silent_while_it_is_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        host = cluster.place(c).host
        answer_no_lists(monkeypatch, host)
        await cluster.write(dict.fromkeys((a, b, c), range(600)), last=599)
        loop = cluster.world.loop
        began_s = loop.time()
        # Its ends were read by then, and its list of entries is awaited.
        loop.call_later(SETTINGS.list_timeout_s / 2, loop.network.partition, "outside", host)
        reports = {report.bookie: report for report in await cluster.check(suspected=frozenset({c}))}
        assert reports[c].health is Health.UNKNOWN
        assert loop.time() - began_s < QUICK.read_timeout_s + SETTINGS.list_timeout_s + 5

    run(scenario)


def test_a_bookie_that_cannot_be_reached_is_asked_for_its_list_again_once_it_can() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c = cluster.bookies[:3]
        await cluster.write({a: range(20), b: range(20), c: [*range(5), *range(9, 20)]}, last=19)
        network = cluster.world.loop.network
        network.partition("outside", cluster.place(c).host)
        with pytest.raises(BookieUnavailableError) as caught:
            await cluster.access.entries_of(LEDGER, c)
        assert not isinstance(caught.value, NoEntryListError), "it was not asked"
        network.heal()
        reports = {report.bookie: report for report in await cluster.check()}
        assert (reports[c].health, reports[c].to_store) == (Health.LACKING, ((5, 8),))

    run(scenario)
