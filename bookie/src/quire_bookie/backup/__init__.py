"""Backup and restore of the cluster's metadata, and what a restore leaves to a person's word."""
