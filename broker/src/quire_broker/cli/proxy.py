"""`quire proxy`: one address for clients that cannot reach each broker."""

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
from quire_broker.cli.start import BrokerPort, HttpPort


def register(commands: Commands) -> None:
    """Add the command."""
    commands.config_kinds["proxy"] = "quire_broker.config.proxy:ProxyConfig"

    @commands.app.command()
    def proxy(
        port: BrokerPort = None,
        http_port: HttpPort = None,
        metadata: Annotated[
            str | None, typer.Option(help="The cluster's etcd, where brokers register: etcd://host:port,host:port")
        ] = None,
        advertise: Annotated[str | None, typer.Option(help="Host name or address of this proxy.")] = None,
        config: ConfigFile = None,
        set_: Settings = None,
        event_loop: EventLoopOption = EventLoop.AUTO,
        log_level: LogLevelOption = LogLevel.INFO,
        log_format: LogFormatOption = LogFormat.TEXT,
    ) -> None:
        """Connect clients that reach only this address to brokers, until SIGINT or SIGTERM."""
        flags = {"port": port, "http_port": http_port, "metadata": metadata, "advertise": advertise}
        options = ServiceOptions(config, set_, event_loop, log_level, log_format)
        run_command(commands, "proxy", "quire_broker.cli.serve_proxy:serve", flags, options)
