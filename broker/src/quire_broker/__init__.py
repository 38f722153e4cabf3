"""Managed ledgers, and the broker that unchanged Pulsar clients use."""

__version__ = "0.1.0"
