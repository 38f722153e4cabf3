"""Offloaded ledgers as objects: their format, writing and reading them. Brokers and jobs share it.

format            bytes <-> blocks, entries, index; names of objects (pure)
target            which bucket or folder, under the names that a managed ledger's metadata has for it
segment_writer    a closed ledger -> a data object and an index object
segment_reader    entries of a segment, by range requests through `windows`
"""
