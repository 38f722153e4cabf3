"""`quire config show`: prints every setting, its value and its origin."""

import json
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings

if TYPE_CHECKING:
    from quire_bookie.config.sources import Loaded, ProcessConfig


class ConfigOutput(StrEnum):
    """Output format of `config show`. `table` includes the origins; TOML, YAML and JSON can be read back as a file."""

    TABLE = "table"
    TOML = "toml"
    YAML = "yaml"
    JSON = "json"


def register(commands: Commands) -> None:
    """Add `quire config`."""
    app = new_app("Show the configuration.")
    commands.app.add_typer(app, name="config")

    @app.command()
    def show(
        process: Annotated[
            str, typer.Argument(help="Kind of process: standalone, bookie, broker or autorecovery.")
        ] = "standalone",
        config: ConfigFile = None,
        set_: Settings = None,
        output: Annotated[ConfigOutput, typer.Option("--output", "-o", help="Output format.")] = ConfigOutput.TABLE,
    ) -> None:
        """Print every setting with its value and its origin."""
        model = commands.config_model(process)
        loaded = load_settings(commands, model, {}, config, set_)
        for variable, meant in loaded.misspelled.items():
            typer.echo(f"quire: the environment variable {variable} has no effect; did you mean {meant}?", err=True)
        typer.echo(render(loaded, output), nl=False)

    # A callback keeps `show` a subcommand although it is the only one.
    app.callback()(lambda: None)


def render(loaded: "Loaded[ProcessConfig] | Loaded[Any]", form: ConfigOutput) -> str:
    """Render the settings as text."""
    # YAML has no enumerations; JSON and TOML print them as text.
    values = {key: value.value if isinstance(value, Enum) else value for key, value, _, _ in loaded.rows()}
    if form is ConfigOutput.JSON:
        return json.dumps(values, indent=2) + "\n"
    if form is ConfigOutput.YAML:
        import yaml  # 40 ms that no other command waits for

        return yaml.safe_dump(values, sort_keys=False)
    if form is ConfigOutput.TOML:
        # TOML has no null: a setting without a value is a comment, so that the text can be read back.
        return "".join(
            f"# {key} is not set\n" if value is None else f"{key} = {_toml(value)}\n" for key, value in values.items()
        )
    rows = [(key, _toml(value), origin) for key, value, origin, _ in loaded.rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n" for key, value, origin in rows)


def _toml(value: Any) -> str:
    # Strings, numbers, booleans and lists are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
