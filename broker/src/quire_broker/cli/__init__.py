"""`quire broker`, `quire standalone` and the commands that talk to them."""

from quire_bookie.cli.main import Commands
from quire_broker.cli import traffic


def register(commands: Commands) -> None:
    """Entry point of the group `quire.commands`."""
    commands.config_kinds["broker"] = "quire_broker.config:BrokerConfig"
    commands.config_kinds["standalone"] = "quire_broker.config:StandaloneConfig"
    traffic.register(commands)
