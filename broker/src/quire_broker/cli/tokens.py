"""`quire tokens`: creates keys and tokens for brokers and bookies, like `pulsar tokens`. Contacts no server."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError
from quire_bookie.tokens.key_urls import file_path, inline_data

SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_KEY_FILE_MODE = 0o600
_DATE_S_MAX = 253_402_300_799  # the end of the year 9999
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
Algorithm = Annotated[str, typer.Option("--signature-algorithm", "-a", help="Signature algorithm.")]
SecretKey = Annotated[str | None, typer.Option("--secret-key", "-sk", help="The secret: path, file:// or data: URL.")]
Token = Annotated[str, typer.Argument(help="The token, or file:///path of a file with it; - is standard input.")]


def register(commands: Commands) -> None:
    """Add `quire tokens`."""
    app = new_app("Create and check keys and tokens.")
    commands.app.add_typer(app, name="tokens")
    app.callback()(lambda: None)
    app.command("create-secret-key")(create_secret_key)
    app.command("create-key-pair")(create_key_pair)
    app.command()(create)
    app.command()(show)
    app.command()(validate)


def create_secret_key(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; it must not exist.")],
    algorithm: Algorithm = "HS256",
    base64_: Annotated[bool, typer.Option("--base64", "-b", help="Write it in base64.")] = False,
) -> None:
    """Create a secret that signs and checks tokens."""
    if algorithm not in SECRET_BYTES:
        raise ConfigError(f"--signature-algorithm {algorithm}: a secret signs with {', '.join(SECRET_BYTES)}")
    import base64

    secret = SystemChance().token(SECRET_BYTES[algorithm])
    _write(output, base64.b64encode(secret) if base64_ else secret)


def create_key_pair(
    private: Annotated[Path, typer.Option("--output-private-key", help="File for the key that signs.")],
    public: Annotated[Path, typer.Option("--output-public-key", help="File for the key that checks.")],
    algorithm: Algorithm = "RS256",
) -> None:
    """Create a private key that signs tokens, and the public one that checks them. PEM, PKCS8."""
    from cryptography.hazmat.primitives import serialization as forms

    key = _new_private_key(algorithm)
    pem = forms.Encoding.PEM
    _write(private, key.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption()))
    _write(public, key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))


def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    secret_key: SecretKey = None,
    private_key: Annotated[str | None, typer.Option("--private-key", "-pk", help="The key of a pair.")] = None,
    algorithm: Annotated[
        str | None, typer.Option("--signature-algorithm", "-a", help="Signature algorithm. [HS256, RS256]")
    ] = None,
    expiry_time: Annotated[
        str | None, typer.Option("--expiry-time", "-e", help="How long it is valid: 30m, 12h, 90d, 1y. [forever]")
    ] = None,
) -> None:
    """Create a token and print it."""
    import jwt

    if (secret_key is None) == (private_key is None):
        raise ConfigError("give exactly one of --secret-key and --private-key")
    claims: dict[str, Any] = {"sub": subject}
    if expiry_time is not None:
        claims["exp"] = SystemClock().now_ms() // 1000 + _seconds(expiry_time)
    key = _key(secret_key, "--secret-key") if secret_key is not None else _key(private_key or "", "--private-key")
    try:
        say(jwt.encode(claims, key, algorithm or ("HS256" if secret_key is not None else "RS256")))
    except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"the key cannot sign ({type(error).__name__}); use a key of this algorithm") from None


def show(token: Token) -> None:
    """Print the contents of a token without checking it."""
    import jwt

    text = _token(token)
    try:
        claims = jwt.decode(text, options={"verify_signature": False})
        say(json.dumps(jwt.get_unverified_header(text)))
    except jwt.PyJWTError as error:
        raise ConfigError(f"not a valid token ({type(error).__name__})") from None
    say(json.dumps(claims))
    end_s = claims.get("exp")
    if isinstance(end_s, int) and 0 <= end_s <= _DATE_S_MAX:
        say(f"valid until {datetime.fromtimestamp(end_s, UTC).isoformat()}", err=True)


def validate(
    token: Token,
    secret_key: SecretKey = None,
    public_key: Annotated[str | None, typer.Option("--public-key", "-pk", help="The public key of a pair.")] = None,
    algorithm: Algorithm = "RS256",
) -> None:
    """Check a token as a broker would, and print its role."""
    from quire_bookie.tokens import checks

    if (secret_key is None) == (public_key is None):
        raise ConfigError("give exactly one of --secret-key and --public-key")
    if secret_key is not None:
        key, algorithms = checks.secret_of(_key(secret_key, "--secret-key")), checks.secret_algorithms()
    else:
        key = checks.public_key_of(_key(public_key or "", "--public-key"), algorithm)
        algorithms = checks.public_algorithm(algorithm)
    try:
        say(checks.SignedTokens(key, algorithms, SystemClock()).role_of(_token(token)))
    except checks.TokenError as error:
        raise ConfigError(str(error)) from None


def _new_private_key(algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if re.fullmatch(r"(RS|PS)(256|384|512)", algorithm):
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    curves: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm not in curves:
        raise ConfigError(f"--signature-algorithm {algorithm}: a pair signs with RS256, PS256, ES256 or their variants")
    return ec.generate_private_key(curves[algorithm])


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        path.touch(_KEY_FILE_MODE, exist_ok=False)
        path.write_bytes(content)
    except FileExistsError as error:
        raise ConfigError(f"{path} already exists; choose another file, since keys are not overwritten") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _key(given: str, option: str) -> bytes:
    inline = inline_data(given)
    if inline is not None:
        return inline
    try:
        return Path(file_path(given)).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {file_path(given)} cannot be read: {error.strerror}") from error


def _token(given: str) -> str:
    if given == "-":
        return typer.get_text_stream("stdin").read().strip()
    return _key(given, "TOKEN").decode("utf-8", "replace").strip() if given.startswith("file:") else given.strip()


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhdwy])", text)
    if match is None:
        raise ConfigError(f"--expiry-time {text}: expected a number with s, m, h, d, w or y, e.g. 90d")
    return int(match[1]) * _UNITS_S[match[2]]
