"""Precedence: flags, environment, file, default; invalid values are refused with key, value, source and remedy."""

from pathlib import Path

import pytest
from pydantic import Field

from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import HIDDEN, SECRET, ProcessConfig, load
from quire_bookie.errors import ConfigError


def test_defaults_are_reported_as_defaults() -> None:
    loaded = load(BookieConfig, flags={}, environment={})
    assert loaded.config.port == 3181
    assert {row[2] for row in loaded.rows()} == {"default"}


def test_a_flag_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("bookiePort = 1\njournalMaxSizeMB = 64\ndbStorage_writeCacheMaxSizeMb = 48\n")
    loaded = load(
        BookieConfig,
        flags={"port": 3, "data": None},
        environment={"QUIRE_PORT": "2", "QUIRE_JOURNAL_MAX_SIZE_MB": "96"},
        file=file,
    )
    shown = loaded.config.shown()
    assert (loaded.config.port, shown["journalMaxSizeMB"], shown["dbStorage_writeCacheMaxSizeMb"]) == (3, 96, 48)
    origins = {key: origin for key, _, origin, _ in loaded.rows()}
    assert origins["bookiePort"] == "flag --port"
    assert origins["journalMaxSizeMB"] == "environment QUIRE_JOURNAL_MAX_SIZE_MB"
    assert origins["dbStorage_writeCacheMaxSizeMb"] == f"file {file}"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", f"1{'0' * 30}", "bytes"])
def test_numbers_that_no_setting_can_have_are_refused(value: str) -> None:
    keys = ["minorCompactionThreshold", "journalMaxSizeMB", "scrubIntervalSeconds"]
    for key in keys[1:2] if value[0] == "1" else keys:
        with pytest.raises(ConfigError, match=key):
            load(BookieConfig, flags={}, environment={f"QUIRE_{key}": str(value)})


def test_a_contradiction_names_the_origin_of_each_setting() -> None:
    with pytest.raises(ConfigError) as refused:
        load(BookieConfig, flags={}, environment={"QUIRE_majorCompactionInterval": "5"})
    assert "majorCompactionInterval is from environment QUIRE_majorCompactionInterval" in str(refused.value)
    assert "minorCompactionInterval is from default" in str(refused.value)


def test_a_value_out_of_range_is_refused_with_the_meaning_of_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"journalMaxSizeMB = '5' .*: it must be greater .* 32 \(size of a journal"):
        load(BookieConfig, flags={}, environment={"QUIRE_journalMaxSizeMB": "5"})


def test_a_misspelled_environment_variable_is_found() -> None:
    environment = {"QUIRE_JOURNAL_MAX_SIZ_MB": "64", "QUIRE_TOKEN": "x", "QUIRE_PORT": "3", "JOURNAL_MAX_SIZE_MB": "9"}
    loaded = load(BookieConfig, flags={}, environment=environment)
    assert loaded.misspelled == {"QUIRE_JOURNAL_MAX_SIZ_MB": "QUIRE_JOURNAL_MAX_SIZE_MB"}


def test_a_table_in_a_file_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("[journal]\nsize = 3\n")
    with pytest.raises(ConfigError, match="'journal' is a table; write its settings at the top level"):
        load(BookieConfig, flags={}, environment={}, file=file)


def test_a_line_that_cannot_be_parsed_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("bookiePort = 3\njournalSubmit = auto\n")
    with pytest.raises(ConfigError, match="in 'journalSubmit = auto'; give each key once, as key = value"):
        load(BookieConfig, flags={}, environment={}, file=file)


def test_both_spellings_and_yaml_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "q.yaml"
    file.write_text("journal_max_size_mb: 64\nledgerDirectories: /a\n")
    config = load(BookieConfig, flags={}, environment={"QUIRE_gcWaitTime": "500"}, file=file).config
    shown = config.shown()
    assert (shown["journalMaxSizeMB"], config.ledger_directories, shown["gcWaitTime"]) == (64, ["/a"], 500)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.toml", "jurnalMaxSizeMB = 3", r"unknown setting 'jurnalMaxSizeMB'; did you mean 'journalMaxSizeMB'"),
        ("q.toml", "bookiePort = 'x'", r"bookiePort = 'x' \(from file .*q.toml\): it must be a valid integer"),
        ("q.toml", "bookiePort = ", r"q.toml cannot be parsed"),
        ("q.yaml", "- a", r"expected keys with values"),
        ("q.ini", "a=1", r"ends in .toml, .yaml, .yml, .conf or .properties"),
        ("q.toml", "indexDirectories = '/a,/b'", r"contains 2 folders"),
        (
            "q.toml",
            "diskUsageThreshold = 0.5\ndiskUsageLwmThreshold = 0.9",
            r"diskUsageLwmThreshold 0.9 is above .* 0.5",
        ),
    ],
)
def test_invalid_settings_in_a_file_are_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(BookieConfig, flags={}, environment={}, file=file)
    assert "\n" not in str(caught.value)


def test_the_error_names_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config file /nowhere/q.toml: No such file"):
        load(BookieConfig, flags={}, environment={}, file=Path("/nowhere/q.toml"))


def test_keys_of_another_kind_of_process_may_share_the_file(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("brokerServicePort = 6650")
    loaded = load(BookieConfig, flags={}, environment={}, file=file, also_known=frozenset({"brokerServicePort"}))
    assert (loaded.ignored, loaded.of_others) == ((), ("brokerServicePort",))
    with pytest.raises(ConfigError, match="unknown setting 'brokerServicePort'"):
        load(BookieConfig, flags={}, environment={}, file=file)


def test_a_conf_file_of_the_java_bookie_is_accepted_and_its_unknown_keys_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(
        "# comment\nbookiePort = 3999\nledgerDirectories=/a\njournalDirectories=\n"
        "numAddWorkerThreads=4\nmetadataServiceUri=metadata-store:etcd:http://a:1;\\\n  http://b:2\n"
    )
    loaded = load(BookieConfig, flags={}, environment={}, file=file)
    assert loaded.config.port == 3999
    assert loaded.config.ledger_directories == ["/a"]
    assert loaded.config.journal_directories == []
    assert loaded.config.metadata == "metadata-store:etcd:http://a:1;http://b:2"
    assert loaded.ignored == ("numAddWorkerThreads",)


def test_the_old_key_of_the_journal_folder_is_used_unless_the_new_one_exists(tmp_path: Path) -> None:
    file = tmp_path / "bookkeeper.conf"
    file.write_text("journalDirectory=/j\n")
    loaded = load(BookieConfig, flags={}, environment={}, file=file)
    assert (loaded.config.journal_directories, loaded.ignored) == (["/j"], ())
    file.write_text("journalDirectory=/j\njournalDirectories=/a,/b\n")
    assert load(BookieConfig, flags={}, environment={}, file=file).config.journal_directories == ["/a", "/b"]
    file.write_text("journalDirectory=/j\njournalDirectories=\n")
    assert load(BookieConfig, flags={}, environment={}, file=file).config.journal_directories == ["/j"]


@pytest.mark.parametrize(
    ("lines", "flag", "port"),
    [
        ("httpServerEnabled=false\nhttpServerPort=8000\n", None, -1),
        ("httpServerEnabled=false\nhttpServerPort=8000\n", 8001, 8001),
        ("httpServerEnabled=true\nhttpServerPort=8000\n", None, 8000),
        ("httpServerEnabled=true\n", None, 8080),
        ("httpServerEnabled=true\nhttpServerPort=\n", None, 8080),
        ("httpServerPort=8000\n", None, 8000),
        ("httpServerEnabled=\nhttpServerPort=8000\n", None, 8000),
        ("", None, -1),
    ],
)
def test_http_that_a_conf_file_switches_off_stays_off(lines: str, flag: int | None, port: int, tmp_path: Path) -> None:
    file = tmp_path / "bookkeeper.conf"
    file.write_text(lines)
    loaded = load(BookieConfig, flags={"http_port": flag}, environment={}, file=file)
    assert (loaded.config.http_port, loaded.ignored) == (port, ())


def test_a_line_of_a_conf_file_without_an_equals_sign_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "q.conf"
    file.write_text("bookiePort=1\nnonsense\n")
    with pytest.raises(ConfigError, match=r"q.conf, line 2: expected key=value, found 'nonsense'"):
        load(BookieConfig, flags={}, environment={}, file=file)


class Secretive(ProcessConfig):
    """A model with a secret."""

    token: str = Field("", alias="authToken", min_length=3, json_schema_extra=SECRET)
    name: str = "x"


def test_a_secret_is_neither_shown_nor_repeated_in_an_error() -> None:
    loaded = load(Secretive, flags={"token": "hunter2"}, environment={})
    assert loaded.config.shown() == {"authToken": HIDDEN, "name": "x"}
    assert "hunter2" not in repr(loaded.rows())
    with pytest.raises(ConfigError) as refused:
        load(Secretive, flags={"token": "pw"}, environment={})
    assert "pw" not in str(refused.value)
    assert "authToken" in str(refused.value)
