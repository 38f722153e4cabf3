"""`quire broker`, `quire proxy`, `quire standalone` and the commands that connect to them."""

from quire_bookie.cli.commands import Commands
from quire_broker.cli import bench, namespaces, proxy, schemas, start, subscriptions, tenants, tokens, topics, traffic


def register(commands: Commands) -> None:
    """Register the commands; entry point of the group `quire.commands`."""
    start.register(commands)
    proxy.register(commands)
    traffic.register(commands)
    bench.register(commands)
    topics.register(commands)
    namespaces.register(commands)
    tenants.register(commands)
    subscriptions.register(commands)
    schemas.register(commands)
    tokens.register(commands)
