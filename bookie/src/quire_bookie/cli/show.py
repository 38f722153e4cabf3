"""`quire config show`: every setting, its value, and who set it."""

import json
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings

if TYPE_CHECKING:
    from quire_bookie.config.sources import Loaded, ProcessConfig


class Format(StrEnum):
    """How `config show` prints. `table` has the origins; the others can be fed back as a file."""

    TABLE = "table"
    TOML = "toml"
    YAML = "yaml"
    JSON = "json"


def register(commands: Commands) -> None:
    """Add `quire config`."""
    app = new_app("Look at the configuration.")
    commands.app.add_typer(app, name="config")

    @app.command()
    def show(
        process: Annotated[
            str, typer.Argument(help="Which kind of process: standalone, bookie or broker.")
        ] = "standalone",
        config: ConfigFile = None,
        set_: Settings = None,
        format_: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
    ) -> None:
        """Print every setting with its value and where it came from."""
        model = commands.config_model(process)
        loaded = load_settings(commands, model, {}, config, set_)
        typer.echo(render(loaded, format_), nl=False)

    # A callback keeps `show` a subcommand although it is the only one.
    app.callback()(lambda: None)


def render(loaded: "Loaded[ProcessConfig] | Loaded[Any]", form: Format) -> str:
    """The settings as text."""
    # YAML knows no enumerations, which JSON and TOML print as their texts.
    values = {key: value.value if isinstance(value, Enum) else value for key, value, _, _ in loaded.rows()}
    if form is Format.JSON:
        return json.dumps(values, indent=2) + "\n"
    if form is Format.YAML:
        import yaml  # 40 ms that no other command waits for

        return yaml.safe_dump(values, sort_keys=False)
    if form is Format.TOML:
        return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
    rows = [(key, _toml(value), origin) for key, value, origin, _ in loaded.rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n" for key, value, origin in rows)


def _toml(value: Any) -> str:
    # JSON's spelling of strings, numbers, booleans and lists is TOML's too.
    return json.dumps(value, ensure_ascii=False)
