"""The `quire` command: expected errors are one line, never a traceback."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from quire_bookie.cli.commands import EXIT_NO_ANSWER, EXIT_USAGE
from quire_bookie.cli.main import run
from quire_bookie.cli.process import JsonLines


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("quire: "), error
    return error


@pytest.mark.parametrize("form", ["version", "--version"])
def test_the_version_is_printed(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([form]) == 0
    assert capsys.readouterr().out.startswith("quire 0.")


@pytest.mark.parametrize("command", [[], ["topic"], ["topic", "list"], ["bookie", "start"]])
def test_help_has_a_short_form(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "-h"]) == 0
    assert capsys.readouterr().out.startswith(" ".join(["Usage: quire", *command]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
        (["standalone", "--bookies", "many"], "--bookies"),
        (["standalone", "--bookies", "0"], "bookies = 0 (from flag --bookies)"),
        (["standalone", "--broker-port", "65536"], "brokerServicePort = 65536"),
        (["standalone", "--set", "journalMaxSizeMB=1"], "journalMaxSizeMB = '1' (from --set journalMaxSizeMB)"),
        (["standalone", "--set", "nonsense=1"], "unknown setting 'nonsense'"),
        (["standalone", "--set", "novalue"], "expected KEY=VALUE"),
        (["standalone", "--metadata", "zk://h:1"], "ZooKeeper and Oxia are not supported; use "),
        (["standalone", "--metadata", "h:1"], "has an unknown scheme"),
        (["bookie", "start", "--nonsense"], "see `quire bookie start --help`"),
        (["standalone", "--set", "bookieRack=/a"], "'bookieRack' is not a setting of this process, but of bookie"),
        (["bookie", "start", "--set", "bookieport=1"], "unknown setting 'bookieport'; did you mean 'bookiePort'?"),
        (["standalone", "--config", "/does/not/exist.toml"], "cannot read the config file"),
        (["bookie", "start"], "--metadata (or metadataServiceUri) is missing"),
        (["broker", "start"], "--metadata (or metadataStoreUrl) is missing"),
        (["config", "show", "nonsense"], "process 'nonsense': unknown; give one of"),
        (["topic", "list", "no-namespace"], "expected TENANT/NAMESPACE"),
        (["topic", "list", "--http", "localhost:1"], "expected http://host:port"),
        (["ledger", "read", "1", "--first", "5", "--last", "4"], "--last 4 comes before --first 5"),
        (["produce", "topic", "/does/not/exist"], "the file does not exist"),
        (["produce", "topic", "-", "--property", "x"], "expected NAME=VALUE"),
        (["consume", "topic", "--broker", "http://x"], "is not a broker address"),
    ],
)
def test_invalid_arguments_are_one_line_and_a_usage_code(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == EXIT_USAGE
    assert said in one_line(capsys)
    assert list(tmp_path.iterdir()) == [], "a refused command creates no file"


def test_a_group_without_a_subcommand_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("Usage: quire bookie") and "start" in error


def test_an_unreachable_server_is_one_line_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "--http", "http://127.0.0.1:1"]) == EXIT_NO_ANSWER
    assert "is it running, with an HTTP port?" in one_line(capsys)
    assert run(["consume", "topic", "--broker", "pulsar://127.0.0.1:1"]) == EXIT_NO_ANSWER
    assert "is `quire standalone` running?" in one_line(capsys)


def test_a_settings_file_may_contain_the_keys_of_every_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quire.yaml"
    file.write_text("managedLedgerMaxEntriesPerLedger: 7\nbookiePort: 4000\nledgerDirectories: /x\n")
    assert run(["config", "show", "bookie", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "bookiePort" in shown and "4000" in shown and f"file {file}" in shown
    file.write_text("bookiePorts: 4000\n")
    assert run(["config", "show", "bookie", "--config", str(file)]) == EXIT_USAGE
    assert "did you mean 'bookiePort'?" in one_line(capsys)


def test_a_line_of_the_json_log_is_one_object_with_its_traceback() -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError as error:
        record = logging.LogRecord("quire.x", logging.ERROR, "f", 1, "it %s", ("failed",), (ValueError, error, None))
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "quire.x", "it failed")
    assert found["error"].endswith("ValueError: broken\nin two")
    assert found["time"].endswith("+00:00")


def test_a_bookies_commands_import_no_other_distribution_and_help_imports_no_server() -> None:
    script = (
        "import sys; from quire_bookie.cli.main import run; run(['bookie', '--help']); "
        "wrong = {'quire_broker', 'asyncio', 'urllib.request', 'quire_bookie.config'} & set(sys.modules); "
        "sys.exit(', '.join(wrong) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bookie_starts_without_imports_that_it_needs_only_later() -> None:
    script = (
        "import sys; import quire_bookie.cli.serve_bookie; import quire_bookie.metadata.opening; "
        "wrong = {'aiohttp', 'sqlite3', 'rich', 'yaml', 'jwt', 'quire_bookie.client', 'quire_bookie.admin', "
        "'quire_broker'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(wrong)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["version"], 0), (["nonsense"], 2)])
def test_a_process_with_threads_of_obstore_ends_before_they_can_abort_it(arguments: list[str], code: int) -> None:
    program = (
        "import atexit, obstore, sys; atexit.register(print, 'Python ends'); "
        f"sys.argv = ['quire', *{arguments}]; from quire_bookie.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout + done.stderr, "what the command printed is written before the end"
    assert "Python ends" not in done.stdout
