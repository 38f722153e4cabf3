"""Folders and buckets by their URL: for backups and offloaded ledgers. The only package that knows `obstore`."""
