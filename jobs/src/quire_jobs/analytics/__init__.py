"""Analyses of topics, cursors, bookies and offloaded objects: each a kind of job that writes tables and a report."""
