"""`kubectl quire` on resources, logs and answers that attack the terminal, and on names that lead to other paths.

A small server answers as the API server does.
"""

import json
import os
import pty
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quire_operator.cluster.paths import collection, object_path
from quire_operator.errors import OperatorError
from quire_operator.kubectl.main import main

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\r\x08ok\nforged   Ready"
ACTED_ON = ("\x1b", "\x07", "\x9b", "\u202e", "\x08", "\r")
META = {"name": "pool", "namespace": "default", "uid": "u", "labels": {}, "creationTimestamp": "2026-01-01T00:00:00Z"}
CONDITION = {"type": "Ready", "status": "False", "reason": ATTACK, "message": ATTACK}
BOOKIE = {
    "apiVersion": "quire.dev/v1alpha1",
    "kind": "Bookie",
    "metadata": META,
    "spec": {"replicas": ATTACK},
    "status": {
        "phase": ATTACK,
        "ready": ATTACK,
        "conditions": [CONDITION],
        "bookies": [{"pod": ATTACK, "id": ATTACK, "state": ATTACK, "reason": ATTACK}],
        "operation": {"type": ATTACK, "step": ATTACK},
    },
}
MANAGED_LEDGER = {
    "apiVersion": "quire.dev/v1alpha1",
    "kind": "ManagedLedger",
    "metadata": META,
    "spec": {},
    "status": {
        "state": ATTACK,
        "conditions": [CONDITION],
        "jobs": [{"name": "offload", "kind": ATTACK, "state": ATTACK, "reason": ATTACK, "outputs": [ATTACK]}],
    },
}
POD = {"metadata": META, "spec": {"containers": []}, "status": {"phase": "Pending"}}
EVENT = {
    "metadata": META,
    "involvedObject": {"kind": "Bookie", "name": "pool"},
    "type": "Warning",
    "reason": ATTACK,
    "message": ATTACK,
    "lastTimestamp": "2026-01-01T00:00:00Z",
}


class Api(BaseHTTPRequestHandler):
    """Answers with the resources above; a log is the attack itself."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        plain = self.path.partition("?")[0]
        kinds = {"bookies": BOOKIE, "managedledgers": MANAGED_LEDGER, "pods": POD, "events": EVENT}
        kind, _, name = plain.partition("/default/")[2].partition("/")
        if plain.endswith("/log"):
            self._answer(200, ATTACK.encode())
        elif kind not in kinds or (name and kind in ("managedledgers", "pods")):
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404, "message": ATTACK})
        else:
            items: dict[str, Any] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [kinds[kind]]}
            self._answer(200, kinds[kind] if name else items)

    def _answer(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file: Path = tmp_path_factory.mktemp("kube") / "config"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "default"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    yield str(file)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "-o", "json"),
        ("explain", "bookie/pool"),
        ("explain", "nothing"),
        ("jobs",),
        ("jobs", "-o", "json"),
        ("job", "logs", ATTACK),
        ("drain", ATTACK),
        ("ledgers",),
        ("under-replicated",),
        ("cursors", ATTACK),
        ("cursors", f"t/n/{ATTACK}"),
        ("status", "--context", ATTACK),
        ("status", "--kubeconfig", ATTACK),
    ],
    ids=lambda words: ascii(" ".join(words))[:30],
)
def test_a_terminal_does_not_act_on_what_others_wrote(
    kubeconfig: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = () if "--kubeconfig" in words else ("--kubeconfig", kubeconfig)
    main([*words, *given])
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert not any(one in text for one in ACTED_ON), ascii(text)
    if "json" not in words:
        assert not any(line.startswith("forged") for line in said.out.splitlines()), "a cell begins no line"
    assert "owned" in said.out + said.err or words[0] in ("drain", "ledgers", "under-replicated"), said


def test_a_log_is_escaped_on_a_terminal_and_not_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire_operator.kubectl.main import _writer

    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        _writer(terminal)(ATTACK.encode())
    shown = os.read(ours, 65536).decode().replace("\r\n", "\n")
    os.close(ours)
    assert "owned" in shown
    assert not any(one in shown for one in ACTED_ON), ascii(shown)


@pytest.mark.parametrize("name", ["", ".", "..", "../secrets/x", "a/b", "a%2fb", "a?b", "a#b", "a\nb", "x/../../y"])
def test_a_name_leads_to_no_other_path(name: str) -> None:
    with pytest.raises(OperatorError, match="is not a name"):
        object_path("v1", "Secret", "default", name)
    with pytest.raises(OperatorError, match="is not a name"):
        collection("v1", "Secret", name)


def test_a_name_of_a_command_leads_to_no_other_path(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("explain", "pod/../secrets/x"), ("explain", "bookie/.."), ("status", "-n", "../../v1/secrets")):
        Api.asked.clear()
        assert main([*words, "--kubeconfig", kubeconfig]) == 1
        assert not any("secrets" in path or ".." in path for path in Api.asked), Api.asked
    capsys.readouterr()
