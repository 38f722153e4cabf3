"""Quire in Spark: data source, decoding, offload, analytics. The import starts nothing."""

__version__ = "0.1.0"
