"""`quire bookie ...`."""

from quire_bookie.cli.main import Commands


def register(commands: Commands) -> None:
    """Add `quire bookie`."""
    commands.config_kinds["bookie"] = "quire_bookie.config:BookieConfig"
