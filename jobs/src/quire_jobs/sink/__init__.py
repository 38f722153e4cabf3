"""Writes rows of Spark to topics, through the brokers and the stock Pulsar client. Does not use the source."""
