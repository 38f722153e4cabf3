"""`quire broker`, `quire standalone` and the commands that talk to them."""

from quire_bookie.cli.main import Commands


def register(commands: Commands) -> None:
    """Entry point of the group `quire.commands`."""
