"""Rows of Spark to topics, through the brokers and the stock Pulsar client. Knows nothing of the source."""
