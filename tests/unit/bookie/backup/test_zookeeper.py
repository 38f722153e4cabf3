"""Nodes of ZooKeeper as nodes of etcd, and refusals. tests/compat/test_java_from_zookeeper.py reads one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from quire_bookie.backup.format import BackupError
from quire_bookie.backup.reading import read_nodes
from quire_bookie.backup.restore import inspect_backup
from quire_bookie.backup.taking import take_backup
from quire_bookie.backup.zookeeper import Found, ZookeeperMetadata, _require_unchanged, converted
from quire_bookie.env.chance import SystemChance
from quire_bookie.metadata import layout
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.model import LedgerId
from quire_bookie.object_store.opening import open_object_store
from tests.unit.bookie.backup.test_taking import SetClock
from tests.unit.bookie.metadata.test_ledger_metadata import GOLDEN_VALUES

LEDGER = GOLDEN_VALUES[0]
CLUSTER = [Found("/ledgers", b""), Found(layout.INSTANCE_ID, b"1-2-3")]


def keys(found: list[Found]) -> list[str]:
    return [node.key for node in converted(found)]


@pytest.mark.parametrize(
    ("path", "ledger"),
    [
        ("/ledgers/00/0000/L0007", 7),
        ("/ledgers/000/0000/0000/0000/L0007", 7),
        ("/ledgers/L0000000007", 7),
        ("/ledgers/000/0000/0021/4748/L3647", 2**31 - 1),
        ("/ledgers/000/0000/0042/9496/L7298", (1 << 32) + 2),
    ],
)
def test_a_ledger_of_any_ledger_manager_is_at_its_path_on_etcd(path: str, ledger: int) -> None:
    nodes = {node.key: node.value for node in converted([Found(path, LEDGER)])}
    assert nodes[layout.ledger_path(LedgerId(ledger))] == LEDGER


def test_parents_and_nodes_of_zookeeper_are_left_out() -> None:
    empty = ["/zookeeper/quota", "/ledgers/00", "/ledgers/00/0000", "/managed-ledgers/t/n", "/namespace/t", "/counters"]
    assert keys([Found(path, b"") for path in empty]) == []
    assert keys([Found("/ledgers/LAYOUT", b"2\n"), Found("/zookeeper/config", b"x")]) == []


def test_empty_nodes_with_a_meaning_stay() -> None:
    kept = ["/admin/flags/policies-readonly", "/ledgers", "/ledgers/available", "/ledgers/available/readonly"]
    kept += ["/ledgers/idgen-long", "/ledgers/idgen-long/HOB-0000000003", DISABLE]
    assert keys([Found(path, b"") for path in kept]) == sorted(kept)


def test_a_counter_continues_after_the_children_that_it_had() -> None:
    found = [Found(layout.ID_COUNTER, b"", created=41), Found("/counters/producer-name", b"", created=5)]
    assert {node.key: node.version for node in converted(found)} == {
        layout.ID_COUNTER: 40,
        "/counters/producer-name": 4,
    }
    # An id generator that was reset gives no id again that a ledger has.
    found = [Found("/ledgers/00/0000/L0050", LEDGER), Found(layout.ID_COUNTER, b"", created=2)]
    assert {node.key: node.version for node in converted(found)}[layout.ID_COUNTER] == 50
    assert {node.key: node.version for node in converted(found[:1])}[layout.ID_COUNTER] == 50


@pytest.mark.parametrize(
    "path", ["/ledgers/available/b:3181", "/ledgers/underreplication/auditorelection/V_0000000003"]
)
def test_a_cluster_that_runs_is_refused_by_the_name_of_a_node(path: str) -> None:
    with pytest.raises(BackupError, match=f"{path} belongs to a process that runs"):
        converted([*CLUSTER, Found(path, b"", ephemeral=True)])


class Later:
    """ZooKeeper after everything was read, by path: the last transactions of a node and of its children."""

    def __init__(self, changed: dict[str, tuple[int, int]]) -> None:
        self._changed = changed

    def exists_async(self, path: str) -> SimpleNamespace:
        found = self._changed.get(path)
        stat = None if found is None else SimpleNamespace(mzxid=found[0], pzxid=found[1])
        return SimpleNamespace(get=lambda: stat)


def test_a_node_that_changes_once_it_was_read_is_refused() -> None:
    paths = [f"/ledgers/{number}" for number in range(1200)]
    same = dict.fromkeys(paths, (7, 9))
    _require_unchanged(Later(same), paths, begun=9)
    for change in ({paths[1100]: (10, 9)}, {paths[3]: (7, 10)}):
        with pytest.raises(BackupError, match=f"{next(iter(change))} changed while it was read"):
            _require_unchanged(Later(same | change), paths, begun=9)
    with pytest.raises(BackupError, match="/ledgers/1199 changed"):
        _require_unchanged(Later(dict.fromkeys(paths[:-1], (7, 9))), paths, begun=9)


def test_a_ledger_that_cannot_be_read_is_refused_by_its_path() -> None:
    with pytest.raises(BackupError, match="/ledgers/00/0000/L0007: not ledger metadata"):
        converted([Found("/ledgers/00/0000/L0007", b"torn")])
    with pytest.raises(BackupError, match="is not the path of a ledger"):
        converted([Found("/ledgers/999/9999/9999/9999/L9999", LEDGER)])
    with pytest.raises(BackupError, match="second description of ledger 7"):
        converted([Found("/ledgers/00/0000/L0007", LEDGER), Found("/ledgers/L0000000007", LEDGER)])


async def test_its_nodes_make_a_backup_that_a_restore_accepts(tmp_path: Path) -> None:
    found = [
        *CLUSTER,
        Found("/ledgers/00/0000/L0007", LEDGER),
        Found("/managed-ledgers/t/n/persistent/a", b"topic"),
        Found("/managed-ledgers/t/n/persistent/a-b", b"another"),
        Found("/managed-ledgers/t/n/persistent/a/cursor", b"its cursor"),
    ]
    objects = open_object_store(f"file://{tmp_path}", {})
    metadata = ZookeeperMetadata(converted(found))
    manifest = await take_backup(metadata, objects, clock=SetClock(), chance=SystemChance())
    assert (manifest.instance_id, manifest.ledgers, manifest.left_out) == ("1-2-3", 1, 0)
    assert (await inspect_backup(objects, manifest)).short_ids == 7
    assert [node async for nodes in read_nodes(objects, manifest) for node in nodes] == metadata.nodes


async def test_a_zookeeper_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_bookie.backup.zookeeper.CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(BackupError, match=r"ZooKeeper 127\.0\.0\.1:1 cannot be read"):
        await ZookeeperMetadata.read("127.0.0.1:1")
