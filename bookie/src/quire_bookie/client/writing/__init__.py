"""Writes ledgers: add pipeline, ensemble changes, explicit LAC, closing."""
