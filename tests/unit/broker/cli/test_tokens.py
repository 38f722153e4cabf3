"""Keys and tokens created by the command, checked by the code that brokers use."""

from pathlib import Path

import jwt
import pytest

from quire_bookie.cli.client_access import client_access
from quire_bookie.cli.main import run
from quire_bookie.errors import ConfigError


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["tokens", *arguments]) == 0
    return capsys.readouterr().out.strip()


def test_a_secret_verifies_the_tokens_that_it_signs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    said(capsys, "create-secret-key", "--output", str(key))
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    token = said(capsys, "create", "--subject", "app", "--secret-key", f"file://{key}", "--expiry-time", "2h")
    assert said(capsys, "validate", token, "--secret-key", str(key)) == "app"
    file = tmp_path / "token"
    file.write_text(token + "\n")
    assert said(capsys, "validate", f"file://{file}", "--secret-key", str(key)) == "app"
    assert '"sub": "app"' in said(capsys, "show", token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_pair_signs_with_one_key_and_checks_with_the_other(
    algorithm: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    paths = ("--output-private-key", str(private), "--output-public-key", str(public))
    said(capsys, "create-key-pair", *paths, "-a", algorithm)
    token = said(capsys, "create", "--subject", "app", "--private-key", str(private), "-a", algorithm)
    assert jwt.get_unverified_header(token)["alg"] == algorithm
    assert said(capsys, "validate", token, "--public-key", str(public), "-a", algorithm) == "app"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "--subject", "a"), "give exactly one of --secret-key and --private-key"),
        (("create", "--subject", "a", "--secret-key", "KEY", "-e", "soon"), "expected a number"),
        (("create-secret-key", "--output", "KEY"), "keys are not overwritten"),
        (("create-secret-key", "--output", "NEW", "-a", "RS256"), "a secret signs with"),
        (("validate", "no.token", "--secret-key", "KEY"), "the token is invalid"),
        (("create", "--subject", "a", "--secret-key", "MISSING"), "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_without_any_secret(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "KEY"
    key.write_bytes(b"s" * 32)
    places = {name: str(tmp_path / name) for name in ("KEY", "NEW", "MISSING")}
    assert run(["tokens", *(places.get(word, word) for word in arguments)]) != 0
    error = capsys.readouterr().err
    assert complaint in error
    assert "ssss" not in error and "Traceback" not in error


def test_an_expired_token_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = tmp_path / "KEY"
    key.write_bytes(b"s" * 32)
    token = jwt.encode({"sub": "a", "exp": 1}, b"s" * 32)
    assert run(["tokens", "validate", token, "--secret-key", str(key)]) != 0
    assert "has expired" in capsys.readouterr().err


def test_clients_take_their_credentials_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    assert client_access({}).headers == {}
    assert client_access({"QUIRE_TOKEN": f"file://{file}"}).headers == {"Authorization": "Bearer abc"}
    assert "abc" not in repr(client_access({"QUIRE_TOKEN": "abc"}))
    with pytest.raises(ConfigError, match="nowhere"):
        client_access({"QUIRE_TOKEN": f"file://{tmp_path}/nowhere"})


def test_a_token_with_an_end_beyond_all_dates_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    token = jwt.encode({"sub": "app", "exp": 10**30}, b"s" * 32)
    assert '"sub": "app"' in said(capsys, "show", token)
