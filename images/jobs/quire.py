"""What spark-submit runs in a container that one of Spark's operators made: `quire`, with the arguments given."""

from quire_bookie.cli.main import main

main()
