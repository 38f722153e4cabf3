"""Parses a file of settings into keys and values: TOML, YAML, or the `key=value` lines of BookKeeper's own files.

Does not interpret keys. In the last format every value is text, empty for a key without a value, and a line that ends
in a backslash continues on the next one (java.util.Properties).
"""

import re
from pathlib import Path
from typing import Any

from quire_bookie.errors import ConfigError

PROPERTIES = (".conf", ".properties")
_FORMS = "a config file ends in .toml, .yaml, .yml, .conf or .properties"


def parse_file(file: Path) -> dict[str, Any]:
    """Parse the settings in a file. ConfigError if it cannot be read or parsed."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text") from error
    if file.suffix in PROPERTIES:
        return _parse_properties(file, text)
    if file.suffix == ".toml":
        return _parse_toml(file, text)
    if file.suffix in (".yaml", ".yml"):
        return _parse_yaml(file, text)
    raise ConfigError(f"{file}: {_FORMS}")


def _parse_toml(file: Path, text: str) -> dict[str, Any]:
    import tomllib  # imported only for such a file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = text.splitlines()[int(at[1]) - 1].strip() if at and int(at[1]) <= text.count("\n") + 1 else ""
        shown = f", in {line!r}" if line else ""
        raise ConfigError(
            f"{file} cannot be parsed: {error}{shown}; give each key once, as key = value, with text in quotes"
        ) from error


def _parse_yaml(file: Path, text: str) -> dict[str, Any]:
    import yaml  # imported only for such a file

    try:
        parsed = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} cannot be parsed: {' '.join(str(error).split())}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"{file}: expected keys with values at the top level, found {type(parsed).__name__}")
    return {str(key): value for key, value in parsed.items()}


def _parse_properties(file: Path, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"{file}, line {number}: expected key=value, found {line!r}")
        found[key.strip()] = value.strip()
    return found
