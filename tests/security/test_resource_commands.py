"""Every `quire` command on resources, run as each kind of role against a real process.

A new command fails here until it stands in the table. docs/cli.md names the same permissions.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from quire_bookie.cli.commands import EXIT_DENIED, EXIT_USAGE
from quire_bookie.cli.main import run
from tests.support.guarded import Guarded, token

pytestmark = pytest.mark.xdist_group("commands by role")  # of one process
NAMESPACE = "victim/ns"
TOPIC = f"{NAMESPACE}/topic"
ROLES = ("stranger", "foreign", "writer", "reader", "keeper", "boss", "root")
"""Nothing granted; admin of another tenant; produce; consume; admin of the namespace; of its tenant; super user."""
SUPER = {"root"}
TENANT = {"boss"} | SUPER
ADMIN = {"keeper"} | TENANT
CONSUME = {"reader"} | ADMIN
LOOK_UP = {"writer"} | CONSUME
SCHEMA = "SCHEMA FILE"
MAY = {
    f"topic list {NAMESPACE}": CONSUME,
    f"topic describe {TOPIC}": LOOK_UP,
    f"topic tail {TOPIC}": CONSUME,
    f"topic create {NAMESPACE}/new": ADMIN,
    f"topic grow {TOPIC} 2": ADMIN,
    f"topic unload {TOPIC}": ADMIN,
    f"topic truncate {TOPIC} --yes": ADMIN,
    f"topic terminate {TOPIC} --yes": ADMIN,
    f"topic delete {TOPIC} --force --yes": ADMIN,
    f"subscription list {TOPIC}": LOOK_UP,
    f"subscription describe {TOPIC} s": LOOK_UP,
    f"subscription peek {TOPIC} s": CONSUME,
    f"subscription create {TOPIC} new": CONSUME,
    f"subscription reset {TOPIC} s --to earliest --yes": CONSUME,
    f"subscription skip {TOPIC} s --all --yes": CONSUME,
    f"subscription delete {TOPIC} s --yes": CONSUME,
    f"schema list {TOPIC}": LOOK_UP,
    f"schema describe {TOPIC}": LOOK_UP,
    f"schema check {TOPIC} {SCHEMA}": LOOK_UP,
    f"schema set {TOPIC} {SCHEMA}": ADMIN,
    f"schema delete {TOPIC} --yes": ADMIN,
    "namespace list victim": TENANT,
    f"namespace describe {NAMESPACE}": ADMIN,
    "namespace create victim/new": TENANT,
    f"namespace delete {NAMESPACE} --yes": TENANT,
    f"namespace set {NAMESPACE} messageTTL=60": ADMIN,
    f"namespace unset {NAMESPACE} messageTTL": ADMIN,
    f"namespace grant {NAMESPACE} other produce": ADMIN,
    f"namespace revoke {NAMESPACE} other": ADMIN,
    "tenant list": SUPER,
    "tenant describe victim": SUPER,
    "tenant create new": SUPER,
    "tenant set victim --admin boss": SUPER,
    "tenant delete victim --yes": SUPER,
    "broker list": SUPER,
    "broker balance --dry-run": SUPER,
    "broker drain": SUPER,
}
OTHERS = {"topic attach", "topic lost", "broker start"}
"""Commands that connect to etcd and bookies directly, or serve."""
ONLY_REFUSED = {"broker drain"}
"""Commands after which the process would serve no other test."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    for tenant, admin in (("victim", "boss"), ("other", "foreign")):
        found.rest("PUT", f"/admin/v2/tenants/{tenant}", {"adminRoles": [admin], "allowedClusters": ["standalone"]})
    found.rest("PUT", f"/admin/v2/namespaces/{NAMESPACE}")
    for role, actions in (("writer", ["produce"]), ("reader", ["consume"])):
        found.rest("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/{role}", actions)
    found.rest("POST", f"/admin/quire/namespaces/{NAMESPACE}/admins", ["keeper"])
    yield found
    found.process.close()


def prepare(broker: Guarded, schema: str) -> None:
    """Create what an earlier command may have deleted."""
    path = f"/admin/v2/persistent/{TOPIC}"
    body = {"type": "AVRO", "schema": schema, "properties": {}}
    for method, where, value in (
        ("PUT", path, None),
        ("PUT", f"{path}/subscription/s", "earliest"),
        ("POST", f"/admin/v2/schemas/{TOPIC}/schema", body),
    ):
        with contextlib.suppress(HTTPError):  # it is there
            broker.rest(method, where, value)


def test_each_command_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = set()
    for group in ("topic", "subscription", "schema", "namespace", "tenant", "broker"):
        assert run([group, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:\n")[2]
        found |= {f"{group} {name}" for name in re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE)}
    assert found == {" ".join(command.split()[:2]) for command in MAY} | OTHERS


@pytest.mark.parametrize("command", MAY)
def test_a_command_is_for_the_roles_of_the_table(
    command: str,
    broker: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    (tmp_path / "schema").write_text(schema)
    monkeypatch.setenv("QUIRE_HTTP", broker.process.http)
    monkeypatch.setenv("QUIRE_BROKER", broker.process.url)
    arguments = [str(tmp_path / "schema") if word == "FILE" else word for word in command.split() if word != "SCHEMA"]
    may = set()
    for role in ROLES:
        if command in ONLY_REFUSED and role in MAY[command]:
            may.add(role)
            continue
        prepare(broker, schema)
        monkeypatch.setenv("QUIRE_TOKEN", token(role))
        code = run(arguments)
        told = capsys.readouterr()
        assert code != EXIT_USAGE, told.err
        assert "eyJ" not in told.out + told.err
        if code != EXIT_DENIED:
            may.add(role)
    assert may == MAY[command]
