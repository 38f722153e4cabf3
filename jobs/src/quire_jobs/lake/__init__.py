"""Topics as tables of a lakehouse: kept current once or continuously, and read together with the live tail.

following    adds the stored messages of topics to a table, each batch with the positions that it reached
job          the kind `table`
view         one view over the table and the messages that it does not have yet
"""

from quire_jobs.lake.view import LiveTable, live_table

__all__ = ["LiveTable", "live_table"]
