"""The offload job: closed ledgers go from bookies into a bucket, as objects that brokers serve reads from."""
