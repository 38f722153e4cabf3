"""Building the index again from the entry logs."""
