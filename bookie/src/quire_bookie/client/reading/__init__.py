"""Reads ledgers: ranges, batches, the LAC and long polls."""
