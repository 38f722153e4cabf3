"""`quire standalone` and `quire broker start`: start a service from flags. `quire broker drain` empties one."""

from typing import Annotated

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask
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
from quire_broker.cli import balance

Advertise = Annotated[str | None, typer.Option(help="Host name or address that clients get.")]
BrokerPort = Annotated[int | None, typer.Option(help="Port of the Pulsar protocol; 0: a free one. [6650]")]
HttpPort = Annotated[int | None, typer.Option(help="Port of REST, health and metrics; 0: a free one. [8080]")]


def register(commands: Commands) -> None:
    """Add both commands."""
    commands.config_kinds["broker"] = "quire_broker.config.broker:BrokerConfig"
    commands.config_kinds["standalone"] = "quire_broker.config.broker:StandaloneConfig"

    @commands.app.command()
    def standalone(
        data: Annotated[str | None, typer.Option(help="Folder for all data. [./quire-data]")] = None,
        bookies: Annotated[int | None, typer.Option(help="Number of bookies; may grow, never shrink. [1]")] = None,
        host: Annotated[
            str | None, typer.Option(help="Address that broker and HTTP listen on; 0.0.0.0: all. [127.0.0.1]")
        ] = None,
        bookie_host: Annotated[
            str | None, typer.Option(help="Address that the bookies listen on; 0.0.0.0: all. [127.0.0.1]")
        ] = None,
        broker_port: BrokerPort = None,
        http_port: HttpPort = None,
        bookie_port: Annotated[
            int | None, typer.Option(help="Port of the first bookie, the next follow; 0: free ones. [3181]")
        ] = None,
        advertise: Advertise = None,
        metadata: Annotated[str | None, typer.Option(help="local, or etcd://host:port,host:port. [local]")] = None,
        config: ConfigFile = None,
        set_: Settings = None,
        event_loop: EventLoopOption = EventLoop.AUTO,
        log_level: LogLevelOption = LogLevel.INFO,
        log_format: LogFormatOption = LogFormat.TEXT,
    ) -> None:
        """Run bookies, a broker and metadata in one process until SIGINT or SIGTERM."""
        flags = {
            "data": data,
            "bookies": bookies,
            "listen": host,
            "bookie_host": bookie_host,
            "broker_port": broker_port,
            "http_port": http_port,
            "bookie_port": bookie_port,
            "advertise": advertise,
            "metadata": metadata,
        }
        options = ServiceOptions(config, set_, event_loop, log_level, log_format)
        run_command(commands, "standalone", "quire_broker.cli.serving:serve_standalone", flags, options)

    broker = new_app("Run a broker on the bookies of a cluster, and balance the load of all brokers.")
    commands.app.add_typer(broker, name="broker")
    broker.callback()(lambda: None)
    balance.register(broker)

    @broker.command()
    def start(
        broker_port: BrokerPort = None,
        http_port: HttpPort = None,
        metadata: Annotated[str | None, typer.Option(help="The cluster's etcd: etcd://host:port,host:port")] = None,
        advertise: Advertise = None,
        config: ConfigFile = None,
        set_: Settings = None,
        event_loop: EventLoopOption = EventLoop.AUTO,
        log_level: LogLevelOption = LogLevel.INFO,
        log_format: LogFormatOption = LogFormat.TEXT,
    ) -> None:
        """Run a broker until SIGINT or SIGTERM."""
        flags = {"broker_port": broker_port, "http_port": http_port, "metadata": metadata, "advertise": advertise}
        options = ServiceOptions(config, set_, event_loop, log_level, log_format)
        run_command(commands, "broker", "quire_broker.cli.serving:serve_broker", flags, options)

    @broker.command()
    def drain(http: Http = DEFAULT_HTTP) -> None:
        """Let a running broker hand its topics to other brokers; it takes none until it is started again."""
        found = ask(http, "PUT", "/admin/quire/drain")
        say(f"{found['moved']} bundles are served by other brokers now, {found['bundles']} are left")
