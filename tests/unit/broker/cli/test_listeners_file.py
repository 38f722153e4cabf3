"""The file with the listeners of one broker among several."""

from pathlib import Path

import pytest

from quire_bookie.errors import StartupError
from quire_broker.cli.broker_settings import broker_settings
from quire_broker.cli.listeners_file import with_listeners_of_file
from quire_broker.config.broker import BrokerConfig
from quire_broker.ownership.listeners import Listener


def config(file: Path, listeners: str = "") -> BrokerConfig:
    return BrokerConfig(
        metadata="etcd://h:1",
        advertise="own.example",
        advertised_listeners=listeners,
        advertised_listeners_file=str(file),
    )


def test_without_a_file_nothing_changes() -> None:
    plain = BrokerConfig(metadata="etcd://h:1", advertised_listeners="a:pulsar://a.example:6650")
    assert with_listeners_of_file(plain, {}) is plain


def test_listeners_of_the_file_are_added_with_the_values_of_variables(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("external:pulsar://$(NODE_IP):31650,external:pulsar+ssl://$(NODE_IP):31651\n")
    found = with_listeners_of_file(config(tmp_path / "own", "a:pulsar://a.example:6650"), {"NODE_IP": "192.0.2.7"})
    made = broker_settings(found)
    assert made.listeners == (
        Listener("a", "pulsar://a.example:6650"),
        Listener("external", "pulsar://192.0.2.7:31650", "pulsar+ssl://192.0.2.7:31651"),
    )
    assert made.access.allowed_hosts == ("own.example", "a.example", "192.0.2.7")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file or directory; name a file with listeners"),
        ("external:pulsar://$(NODE_IP):31650", r"names \$\(NODE_IP\), which is no environment variable"),
        (" \n", "is empty; write listeners into it"),
        ("external:http://a:1", "not a listener"),
        ("a:pulsar://b.example:1", "two addresses"),
    ],
)
def test_a_file_without_listeners_is_refused_with_the_reason(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "own").write_text(text)
    with pytest.raises(StartupError, match=f"advertisedListenersFile: .*{reason}"):
        with_listeners_of_file(config(tmp_path / "own", "a:pulsar://a.example:6650"), {})
