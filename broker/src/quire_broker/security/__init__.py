"""Security of a broker: TLS, tokens and certificates, permissions of namespaces and topics."""
