"""Output of the commands: the status line, the banner, tables, entries."""

import base64
import logging
from pathlib import Path

import pytest

from quire_bookie.cli import ledger as ledgers
from quire_bookie.cli.tables import Output, print_facts, print_table
from quire_broker.cli import balance, topics
from quire_broker.cli.messages import print_message
from quire_broker.cli.status_line import (
    Sample,
    StatusLine,
    describe,
    in_units,
    log_status,
    own_command,
    standalone_banner,
)
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.wire.entry import seal
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.message import arrival_of, messages_of

IDLE = Sample(10.0, 0, 0, 0, 0, 0, 0, None)
BUSY = Sample(12.0, 3000, 3 << 20, 2000, 2 << 20, 4, 2, 5 << 30)


def test_the_status_line_has_rates_totals_and_storage() -> None:
    assert describe(IDLE, BUSY) == (
        "in 1,500 msg/s 1.5 MiB/s (3,000 in all) | out 1,000 msg/s 1.0 MiB/s (2,000 in all) | "
        "storage 5.0 GiB | 2 topics, 4 connections"
    )


def test_two_samples_at_the_same_time_do_not_divide_by_zero() -> None:
    assert "0 msg/s" in describe(IDLE, IDLE)


def test_nothing_is_logged_without_traffic(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_status(logging.getLogger("quire.test"), IDLE, IDLE)
        assert not caplog.records
        log_status(logging.getLogger("quire.test"), IDLE, BUSY)
        assert "3,000 in all" in caplog.text


def test_the_live_line_can_be_shown_and_ends() -> None:
    with StatusLine() as line:
        line.show(IDLE, BUSY)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 40, "1.0 TiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_are_in_units(size: int, text: str) -> None:
    assert in_units(size) == text


def test_the_banner_names_the_ports_and_how_to_connect() -> None:
    text = standalone_banner(BrokerUrls("pulsar://h:1", "http://h:2"), [("b-1", 3181)], "/data", "/data/metadata")
    for part in (
        "pulsar://h:1",
        "http://h:2/console/",
        "http://h:2/healthz",
        "b-1",
        "3181",
        "/data/metadata",
        "quire produce",
    ):
        assert part in text
    quiet = standalone_banner(
        BrokerUrls("pulsar://h:1", "http://h:2"), [], "/data", "/data/metadata", has_console=False
    )
    assert "console" not in quiet


def test_the_banner_exports_addresses_that_differ_from_the_defaults() -> None:
    def shown(clients: str, web: str) -> str:
        return standalone_banner(BrokerUrls(clients, web), [], "/data", "/data/metadata")

    assert "export" not in shown("pulsar://localhost:6650", "http://localhost:8080")
    assert "  export QUIRE_HTTP=http://localhost:9\n" in shown("pulsar://localhost:6650", "http://localhost:9")
    assert "  export QUIRE_BROKER=pulsar://h:1 QUIRE_HTTP=http://h:2\n" in shown("pulsar://h:1", "http://h:2")


def test_the_banner_calls_the_command_as_a_second_terminal_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_command(f"{tmp_path}/.venv/bin/quire") == ".venv/bin/quire"
    assert own_command("/usr/bin/quire") == "quire"


def test_a_table_in_a_pipe_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "count"), [("x" * 300, 1), ("y", None)])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "count"]
    assert first.split() == ["x" * 300, "1"] and second.split() == ["y", "-"]


def test_a_table_on_a_terminal_folds_its_widest_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("name", "reason", "count"), [("n" * 12, "r" * 30, 7), ("表" * 8, "short", None)])
    assert capsys.readouterr().out.splitlines() == [
        "name        reason       count",
        "nnnnnnnnnn  rrrrrrrrrrr      7",
        "nn          rrrrrrrrrrr",
        "            rrrrrrrr",
        "表表表表表  short            -",
        "表表表",
    ]


def test_a_table_of_many_columns_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("topic", "messages in", "entries kept", "bytes kept", "subscriptions"), [("t" * 90, 2, 2, 80, None)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_the_head_of_a_table_is_bold_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(("name",), [])
    assert capsys.readouterr().out == "name\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("name",), [])
    assert capsys.readouterr().out == "\x1b[1mname\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    print_table(("name",), [])
    assert capsys.readouterr().out == "name\n", "such a terminal would show the codes"


def test_markup_in_a_name_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_facts_are_printed_in_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"a": 1, "long name": None})
    assert capsys.readouterr().out == "a          1\nlong name  -\n"


def test_topics_that_are_not_loaded_are_listed_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        "/admin/v2/persistent/a/b": ["persistent://a/b/two", "persistent://a/b/one"],
        "/admin/quire/topics": [
            {"topic": "persistent://a/b/one", "messagesIn": 1, "entries": 2, "size": 3, "subscriptions": {"s": 4}}
        ],
    }
    monkeypatch.setattr(topics, "get", lambda http, path: answers[path])
    rows = topics._rows("http://x", "a/b")
    assert [row["topic"] for row in rows] == ["persistent://a/b/one", "persistent://a/b/two"]
    assert [topics._backlogs(row) for row in rows] == ["s (4)", "(not loaded)"]


def test_a_plan_of_moves_is_shown_with_loads_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    load = {"usage": 0.9, "resource": "cpu", "bundles": 4, "topics": 40, "messagesPerSecond": 7.5, "draining": False}
    state = {
        "leader": {"brokerId": "a:1", "serviceUrl": "http://a:1"},
        "brokers": [load | {"broker": "a:1"}, load | {"broker": "b:1", "usage": 0.1, "draining": True}],
        "average": 0.5,
        "moves": [{"explanation": "x from a:1 to b:1"}],
        "queued": [{"explanation": "y from a:1 to b:1"}],
        "notes": ["the rest waits"],
    }
    balance._show(state, state, "would move")
    text = capsys.readouterr().out
    assert "a:1     90%    cpu        4      40           8  leader" in text
    assert text.endswith("would move x from a:1 to b:1\nlater y from a:1 to b:1\nthe rest waits\n")
    balance._show(state, state | {"moves": [], "queued": []}, "moves")
    assert "no bundle moves: the average usage is 50%" in capsys.readouterr().out


def test_pages_of_ledgers_are_followed_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def get(_: str, path: str) -> object:
        asked.append(path)
        after = int(path.split("after=")[1].split("&")[0])
        return {"ledgers": [{"ledgerId": after + 1}], "next": after + 1 if after < 3 else None}

    monkeypatch.setattr(ledgers, "get", get)
    assert [row["ledgerId"] for row in ledgers._ledgers("http://x", None)] == [0, 1, 2, 3, 4]
    assert [row["ledgerId"] for row in ledgers._ledgers("http://x", 2)] == [0, 1]
    assert asked[-1].endswith("limit=1")


def test_entries_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(_: str, path: str) -> object:
        first = int(path.split("first=")[1].split("&")[0])
        return {"entries": [{"entryId": first}, {"entryId": first + 1}], "lastAddConfirmed": 5}

    monkeypatch.setattr(ledgers, "get", get)
    assert [entry["entryId"] for entry in ledgers._entries("http://x", 1, 0, None)] == [0, 1, 2, 3, 4, 5]


def test_an_entry_is_one_printable_line() -> None:
    payload = base64.b64encode(b"head" + b"\x1b[31mred\n" + b"x" * 500).decode()
    message = {"producer": "p", "sequenceId": 7, "messages": 3, "payloadOffset": 4}
    line = ledgers._line({"entryId": 1, "length": 9, "payload": payload, "message": message})
    assert line.isprintable() and "p:7 x3" in line and line.endswith("...") and "head" not in line
    assert "head" in ledgers._line({"entryId": 1, "length": 9, "payload": payload})


def test_a_wide_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    payload = b"first\nsecond\t\x1b[31m"
    metadata = pb.MessageMetadata(producer_name="producer", sequence_id=0, publish_time=1_500, partition_key="a\nb")
    (message,) = messages_of(arrival_of((7, 3), seal(metadata, payload)))
    print_message(message, Output.WIDE)
    assert capsys.readouterr().out == "7:3:-1  1970-01-01T00:00:01.500+00:00  a\\nb  first\\nsecond\\t\\x1b[31m\n"
