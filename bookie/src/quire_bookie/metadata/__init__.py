"""Defines the metadata store port, its implementations, and one module per kind of node."""
