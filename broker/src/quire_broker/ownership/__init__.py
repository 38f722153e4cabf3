"""Bundles, their owners, and answers to lookups."""
