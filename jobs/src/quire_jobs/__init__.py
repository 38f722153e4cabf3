"""Quire in Spark: the data source, what decodes, offload, analytics. Starts nothing when it is imported."""

__version__ = "0.1.0"
