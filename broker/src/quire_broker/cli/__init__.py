"""`quire broker`, `quire proxy`, `quire standalone` and the commands that connect to them."""

from quire_bookie.cli.commands import Commands
from quire_broker.cli import proxy, start, tokens, topics, traffic


def register(commands: Commands) -> None:
    """Register the commands; entry point of the group `quire.commands`."""
    start.register(commands)
    proxy.register(commands)
    traffic.register(commands)
    topics.register(commands)
    tokens.register(commands)
