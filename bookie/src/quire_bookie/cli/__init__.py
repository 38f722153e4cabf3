"""The `quire` command and the subcommands of this distribution."""
