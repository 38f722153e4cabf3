"""`quire proxy`: one address for clients that cannot reach each broker, in Pulsar's proxy protocol.

It answers lookups by asking brokers, and connects clients to the broker that they name. After the handshake it only
moves bytes. It owns no topics and stores nothing.
"""
