"""WebSocket producers, consumers and readers, as stock Pulsar serves them.

A session is a client of the Pulsar protocol: it connects to the brokers that own its topics, with the token of its
WebSocket client, and attaches again when a topic moves. So the owner checks permissions, limits and rates.
"""
