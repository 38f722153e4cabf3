"""Bundles, their owners, and the answer to a lookup."""
