"""Runs `quire` with the given arguments: the program for spark-submit in a container of a Spark operator."""

from quire_bookie.cli.main import main

main()
