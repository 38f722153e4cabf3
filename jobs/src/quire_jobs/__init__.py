"""Quire's Spark jobs. Not there yet: see the feature table in the README."""

__version__ = "0.1.0"
