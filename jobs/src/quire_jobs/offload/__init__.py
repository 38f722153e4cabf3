"""The offload job: copies closed ledgers from bookies into a bucket, as objects from which brokers serve reads."""
