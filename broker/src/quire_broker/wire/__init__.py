"""The Pulsar binary protocol without I/O: encodes and decodes commands."""
