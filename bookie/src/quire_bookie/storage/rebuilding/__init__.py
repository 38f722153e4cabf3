"""Rebuilding the index from the entry logs."""
