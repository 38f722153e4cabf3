"""`quire schema`: the schemas of topics over the admin REST."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say, say_content
from quire_bookie.cli.refusals import ConflictError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows
from quire_bookie.errors import ConfigError
from quire_broker.cli.admin_paths import schema_path, topic_of
from quire_broker.cli.topic_argument import Topic

File = Annotated[Path, typer.Argument(help="File with the schema, e.g. of Avro in JSON.")]
Kind = Annotated[str, typer.Option("--type", help="AVRO, JSON, PROTOBUF_NATIVE, KEY_VALUE, STRING, ...")]


def register(commands: Commands) -> None:
    """Add `quire schema`."""
    app = new_app("Show, check, register and delete the schemas of topics.")
    commands.app.add_typer(app, name="schema")

    @app.command("list")
    def list_(topic: Topic, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the versions of a topic's schema, oldest first."""
        rows = [_decoded(one) for one in get(http, f"{schema_path(topic_of(topic))}/schemas")["getSchemaResponses"]]
        columns = [
            Column("version", lambda row: row["version"]),
            Column("type", lambda row: row["type"]),
            Column("registered", lambda row: _shown(row["timestamp"])),
            Column("schema", lambda row: json.dumps(row["schema"]), wide=True),
        ]
        empty = f"{topic} has no schema"
        print_rows(rows, columns, output, name=lambda row: row["version"], empty=empty)

    @app.command()
    def describe(
        topic: Topic,
        version: Annotated[int | None, typer.Option(min=0, help="Version. [the newest]")] = None,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Show a version of a topic's schema."""
        suffix = "" if version is None else f"/{version}"
        found = _decoded(get(http, f"{schema_path(topic_of(topic))}/schema{suffix}"))
        facts = {"version": found["version"], "type": found["type"], "registered": _shown(found["timestamp"])}
        facts |= {f"property {key}": value for key, value in found["properties"].items()}
        print_one(found, facts, output, name=found["version"])
        if output.for_people:
            schema = found["schema"]
            say_content(schema if isinstance(schema, str) else json.dumps(schema, indent=2, ensure_ascii=False))

    @app.command("set")
    def set_(topic: Topic, file: File, kind: Kind = "AVRO", http: Http = DEFAULT_HTTP) -> None:
        """Register a schema as the newest version; the compatibility policy of the namespace decides whether it may."""
        found = ask(http, "POST", f"{schema_path(topic_of(topic))}/schema", _body(file, kind))
        say(f"{topic} has the schema as version {found['version']['version']}")

    @app.command()
    def check(topic: Topic, file: File, kind: Kind = "AVRO", http: Http = DEFAULT_HTTP) -> None:
        """Say whether a schema could be registered. Exit code 5: it is not compatible."""
        found = ask(http, "POST", f"{schema_path(topic_of(topic))}/compatibility", _body(file, kind))
        strategy = found["schemaCompatibilityStrategy"]
        if not found["compatibility"]:
            raise ConflictError(f"the schema is not compatible with those of {topic} under {strategy}")
        say(f"the schema is compatible with those of {topic} under {strategy}")

    @app.command()
    def delete(topic: Topic, yes: Yes = False, http: Http = DEFAULT_HTTP) -> None:
        """Delete the schemas of a topic; messages that carry a version stay readable."""
        name = topic_of(topic)
        get(http, f"{schema_path(name)}/schema")
        confirm_name(yes, topic, f"all schemas of {name} will be deleted")
        ask(http, "DELETE", f"{schema_path(name)}/schema")
        say(f"{topic} has no schema any more")


def _body(file: Path, kind: str) -> dict[str, Any]:
    try:
        return {"type": kind.upper(), "schema": file.read_text(), "properties": {}}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _decoded(found: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with its schema as a value, if it is JSON, in place of the text."""
    row = dict(found)
    text = row.pop("data")
    try:
        row["schema"] = json.loads(text)
    except ValueError:
        row["schema"] = text
    return row


def _shown(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
