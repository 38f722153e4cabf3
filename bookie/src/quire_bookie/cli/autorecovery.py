"""`quire autorecovery`: auditor and replication workers as a process of their own."""

from typing import Annotated

import typer

from quire_bookie.cli.commands import Commands
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
    """Add the command."""
    commands.config_kinds["autorecovery"] = "quire_bookie.config.auto_recovery:AutoRecoveryProcessConfig"

    @commands.app.command()
    def autorecovery(
        metadata: Annotated[str | None, typer.Option(help="The cluster's etcd: etcd://host:port,host:port")] = None,
        name: Annotated[str | None, typer.Option(help="What others read in locks and election. [host name]")] = None,
        http_port: Annotated[int | None, typer.Option(help="Port of /healthz, /readyz and /api/v1. [off]")] = None,
        config: ConfigFile = None,
        set_: Settings = None,
        event_loop: EventLoopOption = EventLoop.AUTO,
        log_level: LogLevelOption = LogLevel.INFO,
        log_format: LogFormatOption = LogFormat.TEXT,
    ) -> None:
        """Notice lost and incomplete replicas and make new ones, until SIGINT or SIGTERM."""
        flags = {"metadata": metadata, "name": name, "http_port": http_port}
        options = ServiceOptions(config, set_, event_loop, log_level, log_format)
        run_command(commands, "autorecovery", "quire_bookie.cli.serve_autorecovery:serve", flags, options)
