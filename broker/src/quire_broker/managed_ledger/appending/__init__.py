"""The write side: pending appends, the ledger being written, and switches to the next one."""
