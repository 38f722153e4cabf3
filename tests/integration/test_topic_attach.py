"""Tests of `quire topic attach --data`: a topic that the metadata still names gets its newer ledgers back."""

import json
import subprocess
from pathlib import Path

import pytest

from quire_bookie.metadata.local.change_format import read_log
from quire_bookie.metadata.local.inspection import inspect_database
from tests.integration.test_metadata_damage import MESSAGES, ledgers_of, metadata_command, read, repair, write
from tests.support.standalone import QUIRE, StandaloneProcess, environment


def attach(server: StandaloneProcess, topic: str, *ledgers: int) -> "subprocess.CompletedProcess[str]":
    command = [QUIRE, "topic", "attach", topic, *map(str, ledgers), "--data", str(server.data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), check=False)


def lose_last_run(folder: Path) -> None:
    """Lose the write-ahead log, and the first commit in the change log that would replace it."""
    (folder / "metadata.db-wal").unlink()
    seen = inspect_database(folder).seen
    assert seen is not None
    data = bytearray((folder / "metadata.log").read_bytes())
    commits = read_log(bytes(data), keep=True).commits
    lost = next(position for position, _ in commits if position.sequence == seen.last.sequence + 1)
    data[data.index(lost.chain) + 24] ^= 1
    (folder / "metadata.log").write_bytes(data)


@pytest.mark.slow
def test_a_topic_of_the_metadata_gets_its_lost_ledgers_back(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path)
    try:
        server.start()
        sent = write(server)
        older = {topic: ledgers_of(server, topic) for topic in sent}
        server.stop()
        server.start()
        for topic, messages in write(server).items():
            sent[topic] += messages
        newer = {topic: [one for one in ledgers_of(server, topic) if one not in older[topic]] for topic in sent}
        assert all(newer.values()), "a topic that is loaded again has a new ledger"
        server.kill()
        lose_last_run(server.data / "metadata")

        assert repair(server).returncode == 0
        topic, left = list(sent)[:2]
        early = attach(server, topic, *newer[topic])
        assert early.returncode != 0, "the ledgers are not adopted yet"
        adopted = metadata_command(server, "orphans", "adopt", "--all", "--json")
        assert adopted.returncode == 0, adopted.stderr + adopted.stdout
        unknown = attach(server, "persistent://public/default/unknown", *newer[topic])
        assert unknown.returncode != 0 and "give --create" in unknown.stderr
        done = attach(server, topic, *newer[topic])
        assert done.returncode == 0, done.stderr
        listed = ", ".join(map(str, sorted(older[topic] + newer[topic])))
        assert f"{topic} has ledgers {listed}: {len(sent[topic])} entries" in done.stdout
        again = attach(server, topic, *newer[topic])
        assert (again.returncode, again.stdout) == (0, done.stdout), "repeating it changes nothing"
        released = metadata_command(server, "release-hold", "--json")
        assert released.returncode == 0, released.stderr
        assert json.loads(released.stdout)["idsAbove"] > max(max(ledgers) for ledgers in newer.values())

        server.start()
        assert read(server, topic, len(sent[topic])) == sent[topic]
        assert read(server, left, MESSAGES) == sent[left][:MESSAGES], "its newer ledger was not attached"
        late = attach(server, topic, *newer[topic])
        assert late.returncode != 0 and "in use by another process" in late.stderr
    finally:
        server.close()
