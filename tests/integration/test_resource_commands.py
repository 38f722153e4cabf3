"""`quire topic|subscription|namespace|tenant|schema|broker|bookie`, as an operator runs them against a real process."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.polling import until
from tests.support.standalone import QUIRE, StandaloneProcess, environment

DONE, FAILED, USAGE, MISSING, CONFLICT = 0, 1, 2, 3, 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    found = StandaloneProcess(tmp_path_factory.mktemp("commands"), bookies=2)
    found.start()
    yield found
    found.close()


class Shell:
    """Runs commands with the addresses of one server."""

    def __init__(self, server: StandaloneProcess) -> None:
        self.environment = environment() | {"QUIRE_BROKER": server.url, "QUIRE_HTTP": server.http}

    def __call__(self, *arguments: str, code: int = DONE, stdin: str = "") -> str:
        """Return what a command prints; both streams if it must fail."""
        done = subprocess.run(
            [QUIRE, *arguments], input=stdin, capture_output=True, text=True, timeout=60, env=self.environment
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == DONE else done.stdout + done.stderr

    def value(self, *arguments: str) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self(*arguments, "-o", "json"))

    def typed(self, answer: str, *arguments: str) -> int:
        """Run a command on a terminal on which `answer` is typed; return its exit code."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [QUIRE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=self.environment
        ) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            code = process.wait(60)
        os.close(ours)
        return code


@pytest.fixture
def quire(server: StandaloneProcess) -> Shell:
    return Shell(server)


def test_a_topic_lives_from_its_creation_to_its_deletion(quire: Shell) -> None:
    quire("topic", "create", "life")
    assert "This topic already exists" in quire("topic", "create", "life", code=CONFLICT)
    quire("produce", "life", "-", stdin="one\ntwo\n")
    found = quire.value("topic", "describe", "life")
    assert (found["topic"], found["partitions"]) == ("persistent://public/default/life", 0)
    assert found["stats"]["msgInCounter"] == 2
    assert "messages in   2 since it was loaded" in quire("topic", "describe", "life")
    assert "persistent://public/default/life" in quire("topic", "list", "-o", "name").splitlines()
    quire("topic", "unload", "life")
    assert "give --yes" in quire("topic", "delete", "life", code=USAGE)
    assert quire.typed("another", "topic", "delete", "life") == USAGE
    assert quire.typed("life", "topic", "delete", "life") == DONE
    assert "topic persistent://public/default/life does not exist" in quire("topic", "describe", "life", code=MISSING)
    quire("topic", "delete", "life", "--yes", code=MISSING)


def test_a_partitioned_topic_is_created_grown_described_and_deleted(quire: Shell) -> None:
    quire("topic", "create", "parted", "--partitions", "2")
    quire("topic", "grow", "parted", "3")
    quire("produce", "parted", "-", stdin="a\nb\nc\n")
    quire("subscription", "create", "parted", "s", "--at", "earliest")
    found = quire.value("topic", "describe", "parted")
    assert (found["partitions"], found["stats"]["msgInCounter"]) == (3, 3)
    assert quire("topic", "tail", "parted").splitlines() == ["a", "b", "c"]
    assert quire("subscription", "peek", "parted", "s").splitlines() == ["a", "b", "c"]
    assert quire.value("subscription", "list", "parted")[0]["subscription"] == "s"
    quire("subscription", "skip", "parted", "s", "--all", "--yes")
    assert quire.value("subscription", "describe", "parted", "s")["backlog"] == 0
    quire("topic", "delete", "parted", "--force", "--yes")
    quire("topic", "describe", "parted", code=MISSING)


def test_names_of_topics_are_completed(quire: Shell) -> None:
    quire("topic", "create", "completed-one")
    quire("topic", "create", "completed-two", "--partitions", "2")
    for line, expected in (
        ("quire topic describe completed-", ["completed-one", "completed-two"]),
        ("quire consume public/default/completed-o", ["public/default/completed-one"]),
        ("quire subscription list missing/namespace/c", []),
    ):
        words = {"_QUIRE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        done = subprocess.run([QUIRE], capture_output=True, text=True, timeout=60, env=quire.environment | words)
        assert (done.stdout.split(), done.stderr) == (expected, ""), line


def test_a_topic_is_truncated_and_ended(quire: Shell) -> None:
    quire("produce", "emptied", "-", stdin="one\n")
    quire("subscription", "create", "emptied", "s", "--at", "earliest")
    quire("topic", "truncate", "emptied", "--yes")
    assert quire.value("subscription", "describe", "emptied", "s")["backlog"] == 0
    quire("topic", "terminate", "emptied", "--yes")
    assert "terminated" in quire("produce", "emptied", "-", stdin="late\n", code=FAILED)


def test_the_last_messages_are_shown_and_followed(quire: Shell) -> None:
    quire("topic", "create", "tailed")
    assert quire("topic", "tail", "tailed") == ""
    for numbers in (range(7), range(7, 9), range(9, 12)):  # entries of several messages
        quire("produce", "tailed", "-", stdin="".join(f"{number}\n" for number in numbers))
    assert quire("topic", "tail", "tailed", "-n", "2").splitlines() == ["10", "11"]
    assert quire("topic", "tail", "tailed", "-n", "4").splitlines() == ["8", "9", "10", "11"]
    assert len(quire("topic", "tail", "tailed", "-n", "100").splitlines()) == 12
    assert quire("topic", "tail", "tailed", "-n", "0") == ""
    [last] = yaml.safe_load_all(quire("topic", "tail", "tailed", "-n", "1", "-o", "yaml"))
    assert last["payload"] == "11"
    with subprocess.Popen(
        [QUIRE, "topic", "tail", "tailed", "-n", "1", "-f"], stdout=subprocess.PIPE, text=True, env=quire.environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "11\n"
        quire("produce", "tailed", "-", stdin="12\n")
        assert process.stdout.readline() == "12\n"
        process.terminate()
    assert "topic list" in quire("topic", "tail", "absent", code=MISSING)


def test_a_subscription_is_created_moved_peeked_and_deleted(quire: Shell) -> None:
    quire("produce", "subscribed", "-", "--batch-max", "2", stdin="".join(f"{number}\n" for number in range(6)))
    quire("subscription", "create", "subscribed", "s", "--at", "earliest")
    assert "already exists" in quire("subscription", "create", "subscribed", "s", code=CONFLICT)
    assert quire("subscription", "peek", "subscribed", "s", "-n", "1").splitlines() == ["0", "1"]
    assert "backlog is 2" in quire("subscription", "skip", "subscribed", "s", "--count", "1", "--yes")
    assert quire("subscription", "peek", "subscribed", "s").splitlines() == ["2", "3", "4", "5"]
    second = json.loads(quire("subscription", "peek", "subscribed", "s", "-n", "1", "-o", "json").splitlines()[0])["id"]
    quire("subscription", "reset", "subscribed", "s", "--to", "latest", "--yes")
    assert quire("subscription", "peek", "subscribed", "s") == ""
    quire("subscription", "reset", "subscribed", "s", "--to", second.rpartition(":")[0], "--yes")
    assert quire("subscription", "peek", "subscribed", "s").splitlines() == ["2", "3", "4", "5"]
    quire("subscription", "reset", "subscribed", "s", "--to", "1h", "--yes")
    assert quire("subscription", "peek", "subscribed", "s").splitlines()[0] == "0"
    assert "give --count, --all or --older-than" in quire("subscription", "skip", "subscribed", "s", code=USAGE)
    quire("subscription", "skip", "subscribed", "s", "--older-than", "0s", "--yes")
    [row] = quire.value("subscription", "list", "subscribed")
    assert (row["subscription"], row["backlog"], row["consumers"]) == ("s", 0, 0)
    assert "it has: s" in quire("subscription", "delete", "subscribed", "typo", "--yes", code=MISSING)
    quire("subscription", "delete", "subscribed", "s", "--yes")
    assert quire.value("subscription", "list", "subscribed") == []


def test_a_connected_consumer_is_shown_and_protects_its_subscription(quire: Shell) -> None:
    quire("topic", "create", "attended")
    with subprocess.Popen(
        [QUIRE, "consume", "attended", "--subscription", "s", "--follow"],
        stdout=subprocess.DEVNULL,
        env=quire.environment,
    ) as process:
        until(
            lambda: any(row["consumers"] for row in quire.value("subscription", "list", "attended")),
            "the consumer is there",
        )
        assert "consumer " in quire("subscription", "describe", "attended", "s")
        quire("subscription", "delete", "attended", "s", "--yes", code=CONFLICT)
        process.terminate()


def test_tenants_and_namespaces(quire: Shell) -> None:
    quire("tenant", "create", "acme", "--admin", "boss")
    quire("tenant", "set", "acme", "--admin", "chief", "--admin", "deputy")
    assert quire.value("tenant", "describe", "acme")["adminRoles"] == ["chief", "deputy"]
    quire("namespace", "create", "acme/orders", "--bundles", "2")
    assert quire("namespace", "list", "acme", "-o", "name") == "acme/orders\n"
    quire(
        "namespace",
        "set",
        "acme/orders",
        "messageTTL=60",
        'retention={"retentionTimeInMinutes": 9, "retentionSizeInMB": -1}',
    )
    quire("namespace", "grant", "acme/orders", "app", "produce", "consume")
    found = quire.value("namespace", "describe", "acme/orders")
    assert found["message_ttl_in_seconds"] == 60 and found["bundles"]["numBundles"] == 2
    assert set(found["auth_policies"]["namespace_auth"]["app"]) == {"produce", "consume"}
    quire("namespace", "unset", "acme/orders", "messageTTL")
    quire("namespace", "revoke", "acme/orders", "app")
    found = quire.value("namespace", "describe", "acme/orders")
    assert found.get("message_ttl_in_seconds") is None and not found["auth_policies"]["namespace_auth"]
    assert "is not JSON" in quire("namespace", "set", "acme/orders", "retention={x", code=USAGE)
    assert "policy retain: this broker has none" in quire("namespace", "set", "acme/orders", "retain=1", code=MISSING)
    assert "does not exist" in quire("namespace", "set", "acme/other", "messageTTL=1", code=MISSING)
    assert "acme" in quire("tenant", "list", "-o", "wide")
    quire("topic", "create", "acme/orders/one")
    quire("tenant", "delete", "acme", "--yes", code=CONFLICT)
    quire("namespace", "delete", "acme/orders", "--yes", code=CONFLICT)
    quire("namespace", "delete", "acme/orders", "--force", "--yes")
    quire("tenant", "delete", "acme", "--yes")
    quire("tenant", "describe", "acme", code=MISSING)
    quire("namespace", "describe", "acme/orders", code=MISSING)


def test_schemas_are_registered_checked_shown_and_deleted(quire: Shell, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}]
    first, second = tmp_path / "first.avsc", tmp_path / "second.avsc"
    first.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    second.write_text(json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}))
    assert "as version 0" in quire("schema", "set", "typed", str(first))
    assert "is compatible" in quire("schema", "check", "typed", str(first))
    assert "not compatible" in quire("schema", "check", "typed", str(second), code=CONFLICT)
    assert quire.value("schema", "describe", "typed")["schema"]["fields"] == fields
    assert '"long"' in quire("schema", "describe", "typed", "--version", "0")
    assert [row["version"] for row in quire.value("schema", "list", "typed")] == [0]
    assert "public/default/typed schema" in quire("ledger", "list")
    quire("schema", "delete", "typed", "--yes")
    quire("schema", "describe", "typed", code=MISSING)
    assert "No such file" in quire("schema", "set", "typed", str(tmp_path / "absent"), code=USAGE)


def test_brokers_and_bookies_are_listed_with_state_and_fill(quire: Shell) -> None:
    [broker] = quire.value("broker", "list")
    assert broker["broker"] == quire.environment["QUIRE_HTTP"].removeprefix("http://")
    assert "leader" in quire("broker", "list")
    rows = quire.value("bookie", "list")
    assert len(rows) == 2 and all(row["state"] == "writable" and 0 <= row["used"] <= 1 for row in rows)
    assert quire("bookie", "list", "-o", "name").splitlines() == [row["bookie"] for row in rows]
    assert yaml.safe_load(quire("cluster", "status", "-o", "yaml"))["writableBookiesCount"] == 2
    assert "auto-recovery is on          yes" in quire("cluster", "status")
    quire("cluster", "drain", rows[0]["bookie"], "--no-wait")
    assert "drain" in quire("bookie", "list")
    quire("cluster", "undrain", rows[0]["bookie"])
    assert "the id is wrong" in quire("cluster", "decommission", "typo", code=MISSING)


def test_a_profile_gives_addresses(quire: Shell, tmp_path: Path) -> None:
    addresses = {name: quire.environment.pop(name) for name in ("QUIRE_HTTP", "QUIRE_BROKER")}
    quire.environment["QUIRE_PROFILES"] = str(tmp_path / "profiles.toml")
    quire("profile", "set", "here", f"http={addresses['QUIRE_HTTP']}", f"broker={addresses['QUIRE_BROKER']}")
    quire("--profile", "here", "produce", "profiled", "-", stdin="x\n")
    quire.environment["QUIRE_PROFILE"] = "here"
    assert "profiled" in quire("topic", "list", "-o", "name")
    quire("topic", "list", "--http", "http://127.0.0.1:1", code=6)
    quire.environment["QUIRE_PROFILE"] = "typo"
    assert "the known profiles are: here" in quire("topic", "list", code=MISSING)


def test_a_bench_counts_what_was_stored_and_read_and_deletes_only_its_own_topic(quire: Shell) -> None:
    found = quire.value("bench", "--seconds", "0.5", "--rate", "200", "--size", "100", "--consume")
    assert (found["messages"], found["received"]) == (100, 100)
    for times in (found["publishMillis"], found["endToEndMillis"]):
        assert 0 < times["p50"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert "quire-bench" not in quire("topic", "list", "-o", "name")

    found = quire.value("bench", "measured", "--seconds", "0.5", "--rate", "0", "--batch-max", "10", "--producers", "2")
    stats = quire.value("topic", "describe", "measured")["stats"]
    assert stats["msgInCounter"] == found["messages"] > 0
    assert "public/missing" in quire("bench", "public/missing/t", "--seconds", "0.1", code=MISSING)
    assert "--size" in quire("bench", "--size", "7", code=USAGE)
