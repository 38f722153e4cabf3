"""Quire's Kubernetes operator: resources, builders, plans, and the process that acts on them."""

__version__ = "0.1.0"
