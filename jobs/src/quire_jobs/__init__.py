"""Quire in Spark: the data source, what decodes, offload, analytics. A session is the caller's; nothing here starts one at import."""

__version__ = "0.1.0"
