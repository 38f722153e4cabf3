"""Reading a ledger: ranges, batches, the LAC and long polls."""
