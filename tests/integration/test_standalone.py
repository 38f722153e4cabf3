"""`quire standalone` and the commands beside it, as a newcomer runs them: real processes, real folders, real ports."""

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.reference import metrics
from tests.support.etcd_server import EtcdServer
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.scrapes import ACCEPT_OPENMETRICS, check_formats
from tests.support.standalone import QUIRE, StandaloneProcess, environment

ANY_PORTS = ("--broker-port", "0", "--http-port", "0", "--bookie-port", "0")


def quire(
    *arguments: str, stdin: str = "", server: StandaloneProcess | None = None
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    known = environment() | ({"QUIRE_BROKER": server.url, "QUIRE_HTTP": server.http} if server else {})
    return subprocess.run([QUIRE, *arguments], input=stdin, capture_output=True, text=True, timeout=60, env=known)


def refusal(*arguments: str) -> str:
    """The last line on stderr of a command that must fail without a traceback."""
    done = quire(*arguments)
    assert done.returncode not in (0, None), done.stdout
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("quire: "), done.stderr
    return last


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """One standalone that several tests look at."""
    found = StandaloneProcess(tmp_path_factory.mktemp("standalone"))
    found.start()
    yield found
    found.close()


def test_it_says_where_it_listens_and_how_to_connect(server: StandaloneProcess) -> None:
    text = server.tail()
    for part in ("Quire is running.", server.url, f"{server.http}/healthz", str(server.data), "quire produce"):
        assert part in text


def test_metrics_are_those_of_bookie_and_broker(server: StandaloneProcess) -> None:
    quire("produce", "measured", "-", "--batch-max", "1", stdin="one\ntwo\n", server=server)
    texts = []
    for accept in ("*/*", ACCEPT_OPENMETRICS):
        request = urllib.request.Request(server.http + "/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=30) as answer:
            texts.append(answer.read().decode())
    families = check_formats(*texts)
    assert families["bookie_SERVER_STATUS"].samples[0].value == 1
    assert families["bookie_journal_JOURNAL_ADD_ENTRY_count"].samples[0].value >= 2
    samples = families["pulsar_in_messages"].samples
    assert [sample.labels for sample in samples] == [{"cluster": "standalone", "namespace": "public/default"}]
    assert samples[0].value >= 2
    assert families["quire_loop_stall_seconds"].type == "histogram"
    described = {row.name.removesuffix("_total"): row for part in metrics.PARTS for row in metrics.rows_of(part)}
    for name, family in families.items():
        row = described[name]
        assert (row.type, row.text) == (family.type, family.documentation), f"{name} in docs/reference/metrics.md"


def test_its_data_is_for_its_user_alone(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path)
    before = os.umask(0)
    try:
        server.start()
        assert quire("produce", "modes", "-", stdin="one\n", server=server).returncode == 0
        server.stop()
    finally:
        os.umask(before)
        server.close()
    found = [server.data, *server.data.rglob("*")]
    assert {"metadata.db", "CURRENT", "VERSION", "standalone.json"} <= {path.name for path in found}
    wide = {str(path): oct(path.stat().st_mode & 0o777) for path in found if path.stat().st_mode & 0o077}
    assert wide == {}
    assert "every user of this machine" not in server.log.read_text()


def test_lines_go_in_and_come_out(server: StandaloneProcess, tmp_path: Path) -> None:
    done = quire("produce", "lines", "-", "--key", "k", "--property", "a=b", stdin="one\ntwo\n\n", server=server)
    assert (done.returncode, done.stderr) == (0, "3 messages stored in lines\n")
    assert quire("consume", "lines", server=server).stdout == "one\ntwo\n\n"
    shown = [json.loads(line) for line in quire("consume", "lines", "-o", "json", server=server).stdout.splitlines()]
    assert [(m["payload"], m["key"], m["properties"]) for m in shown] == [
        (text, "k", {"a": "b"}) for text in ("one", "two", "")
    ]
    (tmp_path / "file").write_bytes(b"all\nof it")
    quire("produce", "lines", str(tmp_path / "file"), "--whole", server=server)
    assert quire("consume", "lines", server=server).stdout == "one\ntwo\n\nall\nof it\n"


def test_many_lines_become_few_entries_and_come_back_in_order(server: StandaloneProcess, tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(20_000)]
    (tmp_path / "many").write_text("\n".join(lines))
    done = quire("produce", "batched", str(tmp_path / "many"), server=server)
    assert done.stderr == "20000 messages stored in batched\n"
    assert quire("consume", "batched", server=server).stdout.splitlines() == lines
    stats = server.request("GET", "/admin/v2/persistent/public/default/batched/internalStats")
    assert 20 <= stats["numberOfEntries"] <= 40, "at most 1,000 messages and 128 KiB an entry"


def test_a_pipe_in_place_of_a_file_is_read(server: StandaloneProcess) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"from a pipe\n")
    os.close(theirs)
    known = environment() | {"QUIRE_BROKER": server.url}
    command = [QUIRE, "produce", "piped", f"/dev/fd/{ours}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=known, pass_fds=(ours,))
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, "1 message stored in piped\n")
    assert quire("consume", "piped", server=server).stdout == "from a pipe\n"


def test_a_line_is_stored_before_the_next_one_is_there(server: StandaloneProcess) -> None:
    known = environment() | {"QUIRE_BROKER": server.url}
    command = [QUIRE, "produce", "drop by drop", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=known) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        until(lambda: quire("consume", "drop by drop", server=server).stdout == "first\n", "it is stored")
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_line_beyond_the_brokers_limit_is_named(server: StandaloneProcess, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"short\n" + b"x" * 6_000_000)
    done = quire("produce", "long", str(tmp_path / "long"), server=server)
    assert done.returncode == 2
    assert "line 2 has more than 5,242,880 bytes" in done.stderr


def test_a_subscription_goes_on_where_it_was(server: StandaloneProcess) -> None:
    quire("produce", "followed", "-", "--batch-max", "1", stdin="1\n2\n3\n", server=server)
    first = quire("consume", "followed", "--subscription", "s", "--count", "2", server=server)
    assert first.stdout == "1\n2\n"
    rest = quire("consume", "followed", "--subscription", "s", "--count", "1", server=server)
    assert rest.stdout == "3\n"


def test_consume_names_a_missing_topic_and_does_not_create_it(server: StandaloneProcess) -> None:
    for options in ([], ["--follow"], ["--subscription", "s"]):
        done = quire("consume", "absent", *options, server=server)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "quire: topic absent does not exist; `quire produce absent FILE` creates it\n"
    assert "absent" not in quire("topic", "list", server=server).stdout
    assert "no/such/topic: TOPIC_NOT_FOUND: Namespace" in quire("consume", "no/such/topic", server=server).stderr
    assert quire("topic", "list", "no/such", server=server).stderr == "quire: no/such: Namespace does not exist\n"


def test_topics_and_ledgers_can_be_looked_at(server: StandaloneProcess) -> None:
    quire("produce", "looked-at", "-", "--batch-max", "1", stdin="hello\nworld\n", server=server)
    assert "persistent://public/default/looked-at" in quire("topic", "list", server=server).stdout
    rows = json.loads(quire("topic", "list", "-o", "json", server=server).stdout)
    assert next(row for row in rows if row["topic"].endswith("/looked-at"))["messagesIn"] == 2
    found = json.loads(quire("ledger", "list", "-o", "json", server=server).stdout)
    owner = "public/default/persistent/looked-at"
    ledger = str(next(row["ledgerId"] for row in found if owner in row["custom"].values()))
    assert owner in quire("ledger", "list", server=server).stdout
    assert "1/1/1" in quire("ledger", "info", ledger, server=server).stdout
    lines = quire("ledger", "read", ledger, server=server).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["hello", "world"]
    missing = quire("ledger", "read", "987654321", server=server)
    assert (missing.returncode, missing.stderr) == (3, "quire: ledger 987654321 does not exist\n")
    beyond = quire("ledger", "read", ledger, "--first", "70", server=server)
    assert "has entries 0 to 1" in beyond.stderr


def test_what_was_stored_survives_an_orderly_end_and_a_kill(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path)
    try:
        server.start()
        quire("produce", "kept", "-", stdin="first\n", server=server)
        assert server.stop() == 0, server.tail()
        server.start()
        quire("produce", "kept", "-", stdin="second\n", server=server)
        server.kill()
        server.start()
        assert quire("consume", "kept", server=server).stdout == "first\nsecond\n"
        assert "persistent://public/default/kept" in quire("topic", "list", server=server).stdout
        assert server.stop(signal.SIGINT) == 0, server.tail()
        assert "Traceback" not in server.tail()
    finally:
        server.close()


def test_the_number_of_bookies_may_grow_and_not_shrink(tmp_path: Path) -> None:
    for bookies in (2, 3):
        server = StandaloneProcess(tmp_path, bookies=bookies)
        try:
            server.start()
            quire("produce", "grown", "-", stdin=f"on {bookies}\n", server=server)
            assert server.stop() == 0
        finally:
            server.close()
    said = refusal("standalone", "--data", str(tmp_path / "data"), "--bookies", "2", *ANY_PORTS)
    assert "created with 3 bookies" in said and "--bookies 3" in said


def test_a_data_folder_in_use_is_refused(server: StandaloneProcess) -> None:
    assert "in use by another process" in refusal("standalone", "--data", str(server.data), *ANY_PORTS)
    assert server.is_healthy()


@pytest.mark.parametrize("flag", ["--broker-port", "--http-port", "--bookie-port"])
def test_a_port_in_use_is_named(flag: str, tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal("standalone", "--data", str(tmp_path / "data"), *ANY_PORTS, flag, port)
    assert f"port {port}" in said and "in use" in said


@pytest.mark.parametrize("flag", ["--host", "--bookie-host"])
def test_a_host_that_is_not_of_this_machine_is_named(flag: str, tmp_path: Path) -> None:
    said = refusal("standalone", "--data", str(tmp_path / "data"), *ANY_PORTS, flag, "203.0.113.9")
    assert f"{flag} " in said and "203.0.113.9 is not an address of this machine" in said
    said = refusal("standalone", "--data", str(tmp_path / "data"), *ANY_PORTS, flag, "no-such-host.invalid")
    assert f"{flag} " in said and "'no-such-host.invalid' does not resolve" in said
    assert not (tmp_path / "data").exists()


def listening_hosts(pid: int) -> set[str]:
    """The IPv4 addresses that a process listens on, from /proc."""
    of_process = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in of_process]
    return {socket.inet_ntoa(int(row[1].split(":")[0], 16).to_bytes(4, "little")) for row in listening}


def test_it_listens_on_loopback_unless_it_is_opened_and_its_bookies_stay_there(tmp_path: Path) -> None:
    warning = "every client that reaches their ports may read and write"
    for given, expected, warnings in (((), {"127.0.0.1"}, 0), (("--host", "0.0.0.0"), {"127.0.0.1", "0.0.0.0"}, 1)):
        process = StandaloneProcess(tmp_path, options=given)
        try:
            process.start()
            assert listening_hosts(process.pid) == expected
            assert quire("produce", "reached", "-", stdin="x\n", server=process).returncode == 0
            assert process.tail().count(warning) == warnings
        finally:
            process.close()


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    java = tmp_path / "java"
    (java / "current").mkdir(parents=True)
    (java / "current" / "18f.txn").write_bytes(b"BKLG")
    assert "not Quire's" in refusal("standalone", "--data", str(java), *ANY_PORTS)
    assert [str(path.relative_to(java)) for path in sorted(java.rglob("*"))] == ["current", "current/18f.txn"]


def test_storage_of_another_instance_is_refused(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path)
    server.start()
    assert server.stop() == 0
    (server.data / "metadata").rename(tmp_path / "metadata-of-another")
    assert "belongs to bookie" in refusal("standalone", "--data", str(server.data), *ANY_PORTS)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not a folder" in refusal("standalone", "--data", str(tmp_path / "file"), *ANY_PORTS)
    assert "cannot be used" in refusal("standalone", "--data", str(tmp_path / "file" / "below"), *ANY_PORTS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: permissions cannot be tested")
def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    assert "Permission denied" in refusal("standalone", "--data", str(folder), *ANY_PORTS)


def test_a_settings_file_and_the_environment_reach_the_process(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('managedLedgerMaxEntriesPerLedger = 77\nclusterName = "filed"\n')
    shown = subprocess.run(
        [QUIRE, "config", "show", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment() | {"QUIRE_clusterName": "from-environment"},
    ).stdout
    assert "from-environment" in shown and "environment QUIRE_clusterName" in shown
    assert "77" in shown and f"file {file}" in shown


def test_parts_run_as_processes_of_their_own_and_stop_in_order(tmp_path: Path, etcd_server: EtcdServer) -> None:
    broker_port, http_port, bookie_http = free_ports(3)
    url = f"etcd://{etcd_server.endpoint}"
    common = ("--metadata", url, "--advertise", "127.0.0.1")
    bookie = ("bookie", "start", "--port", "0", "--data", str(tmp_path / "bookie"), "--http-port", str(bookie_http))
    one = ("--set", "managedLedgerDefaultEnsembleSize=1")
    broker = ("broker", "start", "--broker-port", str(broker_port), "--http-port", str(http_port), *one)
    with (tmp_path / "log").open("wb") as log:
        processes = [
            subprocess.Popen([QUIRE, *command, *common], stdout=log, stderr=log, env=environment())
            for command in (bookie, broker)
        ]
    try:
        bookie_side, broker_side = StandaloneProcess(tmp_path), StandaloneProcess(tmp_path)
        bookie_side.http = f"http://127.0.0.1:{bookie_http}"
        broker_side.http, broker_side.url = f"http://127.0.0.1:{http_port}", f"pulsar://127.0.0.1:{broker_port}"
        bookie_side.wait_until_healthy(processes[0])
        broker_side.wait_until_healthy(processes[1])
        assert bookie_side.text("/readyz") == "ok\n"
        assert quire("produce", "apart", "-", stdin="hello\n", server=broker_side).returncode == 0
        assert quire("consume", "apart", server=broker_side).stdout == "hello\n"
        assert "bookie_WRITE_BYTES" in bookie_side.text("/metrics")
        for process in reversed(processes):
            process.terminate()
            assert process.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
