"""Verifies Pulsar's tokens with keys from settings and files. For bookies and brokers."""
