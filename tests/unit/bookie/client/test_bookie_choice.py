"""Ledgers of groups of bookies: their ensembles, replacements and refusals, while the groups change."""

import asyncio
import json
from dataclasses import replace

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.errors import NotEnoughBookiesError
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.model import BookieId
from quire_bookie.quorum.bookie_groups import BookieGroups
from tests.unit.bookie.client.cluster import QUICK, Cluster, run

FAST = BookieGroups(frozenset({"fast"}))
HELPED = BookieGroups(frozenset({"fast"}), frozenset({"slow"}))


def place(cluster: Cluster, **groups: str) -> None:
    """Put bookies into groups: `fast="b0 b1"`."""
    entries = {group: {name: {"rack": f"/{name}"} for name in names.split()} for group, names in groups.items()}
    cluster.metadata.write(RACK_MAP, json.dumps(entries).encode(), None)


async def ensemble(client: LedgerClient, groups: BookieGroups, size: int, *, fewer: bool = False) -> set[BookieId]:
    async with client.create_ledger(
        ensemble_size=size, write_quorum=size, ack_quorum=1, custom=groups.custom(), fewer_bookies=fewer
    ) as writer:
        return set(writer.metadata.segments[0].ensemble)


async def noticed(cluster: Cluster, client: LedgerClient, groups: BookieGroups, count: int) -> None:
    """Wait until the client knows that `count` bookies may hold a ledger of the groups."""
    for _ in range(1000):
        if client.ensemble_max_in(groups, 99) == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{client.ensemble_max_in(groups, 99)} bookies, not {count}")


def test_a_ledger_is_on_bookies_of_its_groups_as_they_are_now() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        place(cluster, fast="b1 b3", slow="b4")
        await noticed(cluster, client, FAST, 2)
        assert {frozenset(await ensemble(client, FAST, 2)) for _ in range(10)} == {frozenset({"b1", "b3"})}
        assert await ensemble(client, HELPED, 3) == {"b1", "b3", "b4"}
        place(cluster, fast="b0", slow="b4")
        await noticed(cluster, client, FAST, 1)
        assert await ensemble(client, FAST, 1) == {"b0"}

    run(scenario, bookies=6)


def test_bookies_without_a_group_are_in_the_default_one() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        place(cluster, fast="b0", default="b1")
        await noticed(cluster, client, FAST, 1)
        assert await ensemble(client, BookieGroups(frozenset({"default"})), 3) == {"b1", "b2", "b3"}

    run(scenario, bookies=4)


def test_without_enough_bookies_in_the_groups_no_ledger_is_created() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        place(cluster, fast="b0")
        await noticed(cluster, client, FAST, 1)
        with pytest.raises(NotEnoughBookiesError, match="2 writable bookies are needed, 1 are in the groups fast"):
            await ensemble(client, FAST, 2)
        assert await ensemble(client, FAST, 2, fewer=True) == {"b0"}, "narrow, as with a small cluster"

    run(scenario, bookies=4)


def test_a_lost_bookie_is_replaced_from_the_groups_only() -> None:
    async def scenario(cluster: Cluster, client: LedgerClient) -> None:
        place(cluster, fast="b0 b1 b2", slow="b3 b4 b5")
        await noticed(cluster, client, FAST, 3)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, custom=FAST.custom())
        members = set(writer.metadata.segments[0].ensemble)
        (spare,) = {"b0", "b1", "b2"} - members
        await writer.append(b"before")
        cluster.kill_bookie(sorted(members)[0])
        await writer.append(b"after")
        metadata = await client.read_metadata(writer.ledger_id)
        assert set(metadata.segments[-1].ensemble) == {sorted(members)[1], spare}

    run(scenario, bookies=6)


def test_if_machines_must_be_distinct_secondary_groups_help_out_a_primary_one_on_too_few_machines() -> None:
    async def scenario(cluster: Cluster, _: LedgerClient) -> None:
        for name, machine in (("a", "m1"), ("b", "m1"), ("c", "m1"), ("d", "m2"), ("e", "m3")):
            await cluster.start_bookie(name, machine)
        place(cluster, fast="a b c", slow="d")
        client = await cluster.client(replace(QUICK, distinct_machines=True))
        assert (client.ensemble_max_in(FAST, 2), client.ensemble_max_in(HELPED, 1)) == (1, 1)
        assert (client.ensemble_max_in(HELPED, 2), client.ensemble_max_in(None, 2)) == (2, 3)
        for _attempt in range(10):
            assert "d" in await ensemble(client, HELPED, 2)
        assert len(await ensemble(client, FAST, 2, fewer=True)) == 1
        with pytest.raises(NotEnoughBookiesError, match="machine"):
            await ensemble(client, FAST, 2)

    run(scenario, bookies=0)


def test_if_machines_must_be_distinct_a_replacement_comes_from_another_machine_of_the_groups() -> None:
    async def scenario(cluster: Cluster, _: LedgerClient) -> None:
        for name, machine in (("a", "m1"), ("b", "m2"), ("c", "m2"), ("d", "m3"), ("e", "m4")):
            await cluster.start_bookie(name, machine)
        place(cluster, fast="a b c", slow="d")
        client = await cluster.client(replace(QUICK, distinct_machines=True))
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, custom=HELPED.custom())
        await writer.append(b"before")
        cluster.kill_bookie(BookieId("a"))
        await writer.append(b"after")
        metadata = await client.read_metadata(writer.ledger_id)
        assert "d" in metadata.segments[-1].ensemble, "the other bookie of the primary group shares a machine"

    run(scenario, bookies=0)
