"""Profiles of clusters: addresses and credentials under one name, and `quire profile`.

A profile stands for environment variables that are not set: a flag, then the environment, then the profile, then the
default. It is used only if `--profile` or QUIRE_PROFILE names it, so that no token reaches a server by surprise.

    [prod]                                  # ~/.config/quire/profiles.toml, or the file that QUIRE_PROFILES names
    http = "https://broker.example:8443"
    broker = "pulsar+ssl://broker.example:6651"
    token = "file:///home/ada/prod.token"   # a path: a token or a password itself never stands in the file
"""

import json
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Annotated, Final

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import MissingError
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_bookie.errors import ConfigError

PROFILE_VARIABLE: Final = "QUIRE_PROFILE"
VARIABLES: Final = {
    "http": "QUIRE_HTTP",
    "bookie-http": "QUIRE_BOOKIE_HTTP",
    "broker": "QUIRE_BROKER",
    "token": "QUIRE_TOKEN",
    "user": "QUIRE_USER",
    "password": "QUIRE_PASSWORD",
    "tls-trust-certs": "QUIRE_TLS_TRUST_CERTS",
    "tls-certificate": "QUIRE_TLS_CERTIFICATE",
    "tls-key": "QUIRE_TLS_KEY",
}
"""The environment variable that each field of a profile stands for."""
_SCHEMES: Final = {
    "http": ("http://", "https://"),
    "bookie-http": ("http://", "https://"),
    "broker": ("pulsar://", "pulsar+ssl://"),
    "token": ("file://",),
    "password": ("file://",),
}
_SECRETS: Final = ("token", "password")
Profiles = dict[str, dict[str, str]]
Name = Annotated[str, typer.Argument(help="Name of the profile.")]


def profiles_path() -> Path:
    """Return the path of the file."""
    if given := os.environ.get("QUIRE_PROFILES"):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "quire" / "profiles.toml"


def read_profiles() -> Profiles:
    """Read all profiles; none without a file. ConfigError names the file and its error."""
    import tomllib  # not needed without a profile

    path = profiles_path()
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for name, profile in found.items():
        if not isinstance(profile, dict):
            raise ConfigError(f"{path}: {name} stands outside of a profile; write [NAME] above it")
        for field, value in profile.items():
            _check(f"{path}: [{name}] ", field, value)
    return found


def _check(where: str, field: str, value: object) -> None:
    if field not in VARIABLES:
        raise ConfigError(f"{where}{field}: unknown; a profile has {', '.join(VARIABLES)}")
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}{field} = {value!r}: expected a text")
    schemes = _SCHEMES.get(field)
    if schemes and not value.startswith(schemes):
        shown = "the value" if field in _SECRETS else f"'{value}'"
        raise ConfigError(f"{where}{field}: {shown} must begin with {' or '.join(schemes)}")


def _profile(name: str) -> dict[str, str]:
    found = read_profiles()
    if name not in found:
        known = ", ".join(sorted(found)) or "none yet; `quire profile set NAME http=URL` creates one"
        raise MissingError(f"profile {name} does not exist in {profiles_path()}; the known profiles are: {known}")
    return found[name]


def use_profile(name: str, environment: MutableMapping[str, str]) -> Callable[[], None]:
    """Set the variables of a profile that `environment` does not have; return the function that removes them."""
    added = {VARIABLES[field]: value for field, value in _profile(name).items() if VARIABLES[field] not in environment}
    environment.update(added)

    def restore() -> None:
        for variable in added:
            environment.pop(variable, None)

    return restore


def register(commands: Commands) -> None:
    """Add `quire profile`."""
    app = new_app("Keep the addresses and credentials of clusters under names, for --profile.")
    commands.app.add_typer(app, name="profile")

    @app.command("list")
    def list_(output: OutputOption = Output.TABLE) -> None:
        """List the profiles."""
        rows = [{"name": name, **profile} for name, profile in sorted(read_profiles().items())]
        columns = [
            Column("profile", lambda row: row["name"]),
            Column("http", lambda row: row.get("http")),
            Column("broker", lambda row: row.get("broker")),
            Column("token", lambda row: row.get("token"), wide=True),
            Column("user", lambda row: row.get("user"), wide=True),
            Column("trusted certificates", lambda row: row.get("tls-trust-certs"), wide=True),
        ]
        empty = f"there is no profile in {profiles_path()} yet; `quire profile set NAME http=...` creates one"
        print_rows(rows, columns, output, name=lambda row: row["name"], empty=empty)

    @app.command()
    def describe(name: Name, output: OutputOption = Output.TABLE) -> None:
        """Show a profile."""
        found = {"name": name, **_profile(name)}
        print_one(found, found, output, name=name)

    @app.command("set")
    def set_(
        name: Name,
        fields: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help=f"{', '.join(VARIABLES)}.")],
    ) -> None:
        """Create a profile, or change fields of it; FIELD= without a value removes the field."""
        found = read_profiles()
        profile = dict(found.get(name, {}))
        for text in fields:
            field, separator, value = text.partition("=")
            if not separator:
                raise ConfigError(f"{text}: expected FIELD=VALUE")
            if value:
                _check("", field, value)
                profile[field] = value
            else:
                profile.pop(field, None)
        _write(found | {name: profile})
        say(f"profile {name} is stored in {profiles_path()}")

    @app.command()
    def delete(name: Name, yes: Yes = False) -> None:
        """Delete a profile. Files that it names stay."""
        _profile(name)
        confirm_name(yes, name, f"profile {name} will be deleted from {profiles_path()}")
        found = read_profiles()
        del found[name]
        _write(found)
        say(f"profile {name} is deleted")


def _write(profiles: Profiles) -> None:
    """Replace the file. The process creates files for its user alone."""
    text = "\n".join(
        f"[{json.dumps(name)}]\n" + "".join(f"{field} = {json.dumps(value)}\n" for field, value in profile.items())
        for name, profile in profiles.items()
    )
    path = profiles_path()
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
