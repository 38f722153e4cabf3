"""Opens folders and buckets by URL, for backups and offloaded ledgers. Only this package uses `obstore`."""
