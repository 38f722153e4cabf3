"""`quire bookie ...`: runs one bookie as a separate process, and inspects its data."""

from typing import Annotated

import typer

from quire_bookie.cli import bookie_format, bookie_list, bookie_offline, bookie_quarantine, bookie_state
from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.service_command import ServiceOptions, run_command
from quire_bookie.cli.service_options import (
    EventLoop,
    EventLoopOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
)
from quire_bookie.cli.settings import ConfigFile, Settings


def register(commands: Commands) -> None:
    """Add `quire bookie`."""
    commands.config_kinds["bookie"] = "quire_bookie.config.bookie:BookieConfig"
    app = new_app("Run a bookie: journal and ledgers, serving the BookKeeper protocol.")
    commands.app.add_typer(app, name="bookie")
    app.callback()(lambda: None)
    bookie_list.register(app)
    bookie_format.register(commands, app)
    bookie_state.register(commands, app)
    bookie_offline.register(commands, app)
    bookie_quarantine.register(app)

    @app.command()
    def start(
        port: Annotated[int | None, typer.Option(help="Port of the BookKeeper protocol; 0: a free one. [3181]")] = None,
        data: Annotated[str | None, typer.Option(help="Folder for journal and ledgers. [./quire-data]")] = None,
        metadata: Annotated[str | None, typer.Option(help="The cluster's etcd: etcd://host:port,host:port")] = None,
        advertise: Annotated[str | None, typer.Option(help="Host that clients connect to. [host name]")] = None,
        http_port: Annotated[int | None, typer.Option(help="Port of /healthz, /readyz and /metrics. [off]")] = None,
        accept_lost_volumes: Annotated[
            bool | None,
            typer.Option("--accept-lost-volumes", help="Start in limbo despite lost folders or a damaged journal."),
        ] = None,
        config: ConfigFile = None,
        set_: Settings = None,
        event_loop: EventLoopOption = EventLoop.AUTO,
        log_level: LogLevelOption = LogLevel.INFO,
        log_format: LogFormatOption = LogFormat.TEXT,
    ) -> None:
        """Run a bookie until SIGINT or SIGTERM."""
        flags = {"port": port, "data": data, "metadata": metadata, "advertise": advertise, "http_port": http_port}
        flags["accept_lost_volumes"] = accept_lost_volumes
        options = ServiceOptions(config, set_, event_loop, log_level, log_format)
        run_command(commands, "bookie", "quire_bookie.cli.serve_bookie:serve", flags, options)
