"""Hashes of htpasswd files: which are accepted, and which passwords have them."""

import base64
import hashlib

import bcrypt
import pytest

from quire_bookie.errors import ConfigError
from quire_broker.limits import PASSWORD_BYTES_MAX
from quire_broker.security.passwords import apr1, is_password, parse_passwords, users_of

BCRYPT = bcrypt.hashpw(b"secret", b"$2b$04$abcdefghijklmnopqrstuu").decode()
SHA = "{SHA}" + base64.b64encode(hashlib.sha1(b"secret").digest()).decode()
# Written by `openssl passwd -apr1 -salt SALT PASSWORD`.
APR1 = "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"
LONG_APR1 = "$apr1$xy$cYxroJKJtCUmRmou0BdRp/"


@pytest.mark.parametrize("stored", [BCRYPT, BCRYPT.replace("$2b$", "$2y$"), BCRYPT.replace("$2b$", "$2a$"), APR1, SHA])
def test_a_password_has_the_hash_that_the_tools_wrote(stored: str) -> None:
    assert parse_passwords(f"app:{stored}") == {"app": stored}
    assert is_password("secret", stored)
    for wrong in ("Secret", "secret ", "", "secre", "x" * 100_000, "\0", "\ud800"):
        assert not is_password(wrong, stored)


def test_apr1_is_that_of_openssl() -> None:
    assert apr1(b"secret", b"abcdefgh").decode() == APR1
    assert apr1(b"a much longer passphrase of words", b"xy").decode() == LONG_APR1
    assert is_password("a much longer passphrase of words", LONG_APR1)


def test_bcrypt_reads_72_bytes_as_apaches_tools_do() -> None:
    stored = bcrypt.hashpw(b"p" * 72, bcrypt.gensalt(4)).decode()
    assert is_password("p" * 72, stored)
    assert is_password("p" * 80, stored)
    assert not is_password("p" * 71, stored)
    assert not is_password("p" * (PASSWORD_BYTES_MAX + 1), stored)


def test_comments_and_empty_lines_are_ignored_and_the_last_line_of_a_user_counts() -> None:
    found = parse_passwords(f"# users\n\napp:{SHA}\r\nother:{BCRYPT}\napp:{APR1}\n")
    assert found == {"app": APR1, "other": BCRYPT}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no users"),
        ("# nothing", "no users"),
        ("app", "line 1"),
        (":" + SHA, "line 1"),
        ("app:", "line 1"),
        (f"app:{SHA}:more", "line 1"),
        (f"app:{SHA}\nb:rqXexS6ZhobKA", "line 2"),  # crypt
        ("app:plain-text-password", "htpasswd -B"),
        ("app:$apr1$toolongsalt$h9FWgUz3n9YxylKLlR5SQ/", "apr1"),
        ("app:" + BCRYPT.replace("$04$", "$31$"), "cost"),
        ("app:" + BCRYPT[:-1], "line 1"),
        ("a\x07b:" + SHA, "control characters"),
        ("u" * 300 + ":" + SHA, "characters"),
    ],
)
def test_an_unusable_file_is_refused_without_repeating_a_hash(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        parse_passwords(text)
    for secret in ("rqXexS6ZhobKA", "plain-text-password", "h9FWgUz3n9", BCRYPT[30:]):
        assert secret not in str(refused.value)


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        users_of(b"app:\xff\xfe")
