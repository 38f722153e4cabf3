"""`quire autorecovery`: auditor and replication workers as a process of their own."""

from typing import Annotated

import typer

from quire_bookie.cli.early_signals import early_signals
from quire_bookie.cli.main import Commands
from quire_bookie.cli.service_options import (
    EventLoop,
    EventLoopOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
)
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings


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
        with early_signals() as early:
            from quire_bookie.cli.process import run_service, set_up_log
            from quire_bookie.cli.serve_autorecovery import serve
            from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig

            flags = {"metadata": metadata, "name": name, "http_port": http_port}
            loaded = load_settings(commands, AutoRecoveryProcessConfig, flags, config, set_)
            set_up_log(log_level, log_format)
            code = run_service(lambda stop: serve(loaded.config, stop), event_loop, early)
        raise typer.Exit(code)
