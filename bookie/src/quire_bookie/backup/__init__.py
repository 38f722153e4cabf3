"""Backup and restore of the cluster's metadata, and the decisions that a restore leaves to an operator."""
