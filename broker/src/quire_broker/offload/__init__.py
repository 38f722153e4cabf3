"""Offloaded ledgers as objects: their format, writing and reading. Shared by brokers and jobs.

format            bytes <-> blocks, entries, index; names of objects (pure)
target            bucket or folder, under its names in a managed ledger's metadata
segment_writer    a closed ledger -> a data object and an index object
segment_reader    entries of a segment, by range requests through `windows`
"""
