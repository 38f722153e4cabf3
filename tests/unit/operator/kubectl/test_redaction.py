"""A support bundle contains no secrets, but all information needed for support."""

import io
import json
import tarfile
from typing import Any

import pytest

from quire_operator.errors import OperatorError
from quire_operator.kubectl.access import http_of
from quire_operator.kubectl.main import parser
from quire_operator.kubectl.redaction import clean, clean_json, clean_text
from quire_operator.kubectl.report import archive
from quire_operator.kubectl.tables import duration, size, table

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "text",
    [
        "metadataPassword = sesame42",
        'metadataPassword = "sesame42"',
        '{"password": "sesame42"}',
        "brokerClientAuthenticationParameters=token:sesame42",
        "tlsKeyStorePassword: sesame42",
        "AWS_SECRET_ACCESS_KEY=sesame42",
        "Authorization: Bearer sesame42",
        "etcd://root:sesame42@etcd:2379",
        "token=sesame42 failed",
        f"refused {JWT}".replace("c2lnbmF0dXJl", "sesame42"),
        "-----BEGIN RSA PRIVATE KEY-----\nsesame42\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nsesame42",
        "redis://:sesame42@cache:6379",
        '{"password": "se\\"sesame42"}',
        '{"message": "asked with {\\"password\\": \\"sesame42\\"}"}',
        '{"message": "metadataPassword = \\"a sesame42\\""}',
        "quire --metadata-password sesame42 start",
        "Authorization: Basic sesame42",
    ],
)
def test_secrets_in_text_are_replaced(text: str) -> None:
    assert "sesame42" not in clean_text(text)
    assert "sesame42" not in clean_json({"data": {"file": text}, "message": text})


@pytest.mark.parametrize(
    "text", ["ledger 7 is closed", "journalMaxSizeMB = 64", "etcd://etcd-0:2379", "10 tokens left"]
)
def test_text_without_secrets_stays(text: str) -> None:
    assert clean_text(text) == text


def test_objects_keep_their_structure_and_names_of_secrets_but_no_values() -> None:
    given: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "managedFields": [1],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x"},
        },
        "spec": {
            "tls": {"secretName": "etcd-client"},
            "containers": [{"env": [{"name": "DB_PASSWORD", "value": "sesame42"}, {"name": "PORT", "value": "80"}]}],
            "token": "sesame42",
            "automountServiceAccountToken": False,
        },
    }
    assert clean(given) == {
        "metadata": {"name": "p", "annotations": {}},
        "spec": {
            "tls": {"secretName": "etcd-client"},
            "containers": [{"env": [{"name": "DB_PASSWORD", "value": "REDACTED"}, {"name": "PORT", "value": "80"}]}],
            "token": "REDACTED",
            "automountServiceAccountToken": False,
        },
    }


def test_the_value_of_a_secret_argument_is_replaced() -> None:
    given = {"args": ["run", "--token", "sesame42", "--port", "80"]}
    assert clean(given) == {"args": ["run", "--token", "REDACTED", "--port", "80"]}


def test_the_archive_has_all_files_in_one_folder() -> None:
    data = archive({"pod/a.json": json.dumps({"a": 1}), "logs/ü.log": "ü"})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["quire-report/logs/ü.log", "quire-report/pod/a.json"]
        member = tar.extractfile("quire-report/pod/a.json")
        assert member is not None and member.read() == b'{"a": 1}'


def pod(probe: dict[str, Any] | None) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "quire", "ports": [{"name": "http", "containerPort": 8000}]}
    container |= {} if probe is None else {"readinessProbe": {"httpGet": probe}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "sidecar"}, container]}}


def test_the_http_port_of_a_pod_is_that_of_its_readiness_probe() -> None:
    assert http_of(pod({"port": "http"})) == ("http", 8000)
    assert http_of(pod({"port": 8443, "scheme": "HTTPS"})) == ("https", 8443)
    for wrong in (pod(None), pod({"port": "other"}), {"metadata": {"name": "p"}, "spec": {}}):
        with pytest.raises(OperatorError, match="p"):
            http_of(wrong)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("A", "LONG"), [("aaa", None), ("b", 2)]) == "A     LONG\naaa   -\nb     2"


@pytest.mark.parametrize(
    ("value", "text"), [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40, "1.0 TiB")]
)
def test_bytes_are_shown_in_a_suitable_unit(value: int | None, text: str | None) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (3661, "1h1m"), (90_000, "1d1h"), (None, None)]
)
def test_durations_have_two_units_at_most(value: int | None, text: str | None) -> None:
    assert duration(value) == text


@pytest.mark.parametrize("words", [["explode"], ["drain"], ["status", "-o", "yaml"], []])
def test_a_wrong_command_line_exits_with_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert "kubectl quire" in capsys.readouterr().err
