"""A real standalone whose metadata is damaged after a kill: it refuses to start, is repaired, and has all messages."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from quire_bookie.metadata.local.change_format import read_log
from quire_bookie.metadata.local.inspection import inspect_database
from tests.support.standalone import QUIRE, StandaloneProcess, environment

TOPICS = 6
MESSAGES = 40


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096] ^= 1  # among the first frames: SQLite drops it and all that follow
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def remove(path: Path) -> None:
    path.unlink()


def _slowly(change: Callable[[Path], None]) -> Any:
    """Leave this case out of the default run, which has another one of the same test."""
    return pytest.param(change, marks=pytest.mark.slow, id=change.__name__)


@pytest.fixture
def server(tmp_path: Path) -> "StandaloneProcess":
    return StandaloneProcess(tmp_path)


def repair(server: StandaloneProcess, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [QUIRE, "metadata", "repair", "--data", str(server.data), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), check=False)


def write(server: StandaloneProcess) -> dict[str, list[bytes]]:
    """Messages that were acknowledged, by topic."""
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    sent: dict[str, list[bytes]] = {}
    for number in range(TOPICS):
        topic = f"persistent://public/default/damaged-{number}"
        producer = client.create_producer(topic)
        for message in range(MESSAGES):
            content = f"{topic} {message}".encode()
            producer.send(content)
            sent.setdefault(topic, []).append(content)
    client.close()
    return sent


def read(server: StandaloneProcess, topic: str, count: int) -> list[bytes]:
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(30_000).data() for _ in range(count)]
    more = reader.has_message_available()
    client.close()
    return [*found, b"more"] if more else found


@pytest.mark.parametrize("damage", [flip, _slowly(cut), _slowly(remove)])
def test_a_damaged_write_ahead_log_is_refused_and_repaired(
    server: StandaloneProcess, damage: Callable[[Path], None]
) -> None:
    try:
        server.start()
        sent = write(server)
        server.kill()
        damage(server.data / "metadata" / "metadata.db-wal")
        with pytest.raises(AssertionError, match=r"missing from metadata\.db") as refused:
            server.start()
        assert "the process ended with 0" not in str(refused.value)
        assert f"quire metadata repair --data {server.data}" in str(refused.value)

        shown = repair(server, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert "nothing was changed" in shown.stdout
        with pytest.raises(AssertionError, match="missing from"):
            server.start()

        done = repair(server, "--json")
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        assert row["whole"]
        assert row["lostCommits"] is None
        assert (Path(row["kept"]) / "metadata.log").exists()

        server.start()
        for topic, messages in sent.items():
            assert read(server, topic, len(messages)) == messages
        again = write(server)
        for topic, messages in again.items():
            assert read(server, topic, 2 * len(messages)) == sent[topic] + messages
        server.stop()
        assert "nothing to repair" in repair(server).stdout
    finally:
        server.close()


def test_a_repair_of_a_running_standalone_is_refused(server: StandaloneProcess) -> None:
    try:
        server.start()
        done = repair(server)
        assert done.returncode != 0
        assert "in use by another process" in done.stderr
    finally:
        server.close()


def metadata_command(server: StandaloneProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [QUIRE, "metadata", *arguments, "--data", str(server.data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), check=False)


def lose_commits(folder: Path) -> int:
    """Lose the write-ahead log, and one of the commits in the change log that would replace it; its number."""
    (folder / "metadata.db-wal").unlink()
    seen = inspect_database(folder).seen
    assert seen is not None
    data = bytearray((folder / "metadata.log").read_bytes())
    commits = read_log(bytes(data), keep=True).commits
    lost = next(position for position, _ in commits if position.sequence == seen.last.sequence + 8)
    data[data.index(lost.chain) + 24] ^= 1
    (folder / "metadata.log").write_bytes(data)
    return lost.sequence


@pytest.mark.slow
def test_lost_commits_are_named_and_settled_by_the_review_of_a_restore(server: StandaloneProcess) -> None:
    try:
        server.start()
        write(server)
        server.kill()
        first = lose_commits(server.data / "metadata")

        done = repair(server)
        assert done.returncode == 0, done.stderr
        assert f"not rebuilt: commits {first} to " in done.stdout
        assert "ledgers that bookies hold and the metadata does not name" in done.stdout
        with pytest.raises(AssertionError, match="lacks commits") as refused:
            server.start()
        assert f"quire metadata orphans list --data {server.data}" in str(refused.value)

        listed = metadata_command(server, "orphans", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        orphans = [row["ledger"] for row in json.loads(listed.stdout)["differences"]]
        assert orphans
        held = metadata_command(server, "release-hold")
        assert held.returncode != 0
        assert "the hold stays" in held.stderr
        adopted = metadata_command(server, "orphans", "adopt", "--all", "--json")
        assert adopted.returncode == 0, adopted.stderr + adopted.stdout
        released = metadata_command(server, "release-hold", "--json")
        assert released.returncode == 0, released.stderr
        assert json.loads(released.stdout)["idsAbove"] > max(orphans)

        server.start()
        for topic, messages in write(server).items():
            assert read(server, f"{topic}", len(messages))[-1:]
    finally:
        server.close()


def spoil(folder: Path) -> None:
    """Damage both copies, and the database's write-ahead log, beyond use."""
    for path in folder.glob("metadata.*"):
        path.write_bytes(os.urandom(path.stat().st_size))


def vanish(folder: Path) -> None:
    """Lose both copies."""
    for path in folder.glob("metadata.*"):
        path.unlink()


def ledgers_of(server: StandaloneProcess, topic: str) -> list[int]:
    name = topic.partition("://")[2]
    with urllib.request.urlopen(f"{server.http}/admin/v2/persistent/{name}/internalStats") as answer:
        return [row["ledgerId"] for row in json.load(answer)["ledgers"]]


@pytest.mark.parametrize("lose", [_slowly(spoil), vanish])
def test_with_both_copies_unreadable_bookies_alone_bring_every_message_back(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    server = StandaloneProcess(tmp_path, bookies=3)
    try:
        server.start()
        sent = write(server)
        ledgers = {topic: ledgers_of(server, topic) for topic in sent}
        server.kill()
        lose(server.data / "metadata")
        shown = repair(server, "--dry-run")
        assert shown.returncode == 0 and "nothing was changed" in shown.stdout, shown.stdout + shown.stderr
        done = repair(server)
        assert done.returncode == 0, done.stdout + done.stderr
        for said in ("rebuilt: the cluster id, and the cookies of ", "not rebuilt: tenants, namespaces", "held: "):
            assert said in done.stdout
        with pytest.raises(AssertionError, match="lacks commits"):
            server.start()
        adopted = metadata_command(server, "orphans", "adopt", "--all", "--json")
        assert adopted.returncode == 0, adopted.stderr + adopted.stdout
        ends = {row["ledgerId"]: row["lastEntry"] for row in json.loads(adopted.stdout)["adopted"]}
        for topic, ids in ledgers.items():
            assert sum(ends[one] + 1 for one in ids) == MESSAGES
            attaching = [QUIRE, "topic", "attach", topic, *map(str, ids), "--create", "--data", str(server.data)]
            subprocess.run(attaching, check=True, timeout=120, env=environment())
        released = metadata_command(server, "release-hold", "--json")
        assert released.returncode == 0, released.stderr
        assert json.loads(released.stdout)["idsAbove"] > max(ends)

        server.start()
        for topic, messages in sent.items():
            assert read(server, topic, len(messages)) == messages
        for topic, messages in write(server).items():
            assert read(server, topic, 2 * len(messages)) == sent[topic] + messages
        server.stop()
        assert "nothing to repair" in repair(server).stdout
    finally:
        server.close()


def test_without_a_cookie_of_each_bookie_nothing_is_rebuilt(server: StandaloneProcess) -> None:
    try:
        server.start()
        write(server)
        server.kill()
        spoil(server.data / "metadata")
        paths = [path for path in (server.data / "metadata").glob("metadata.*") if not path.name.endswith("-shm")]
        before = [path.read_bytes() for path in paths]
        cookie, *_ = (server.data / "bookie-0").rglob("VERSION")
        cookie.write_bytes(b"damaged")
        done = repair(server)
        assert done.returncode != 0
        assert "VERSION cannot be read" in done.stdout and "nothing was changed" in done.stdout
        assert [path.read_bytes() for path in paths] == before
        assert not list((server.data / "metadata").glob("damaged-*"))
    finally:
        server.close()


def test_a_review_needs_a_stopped_standalone_that_was_repaired(server: StandaloneProcess) -> None:
    try:
        server.start()
        assert "in use by another process" in metadata_command(server, "orphans", "list").stderr
        server.stop()
        assert "no restore is under review" in metadata_command(server, "orphans", "list").stderr
        assert "only the commands of a review" in metadata_command(server, "backup", "--to", "file:///tmp/x").stderr
    finally:
        server.close()
