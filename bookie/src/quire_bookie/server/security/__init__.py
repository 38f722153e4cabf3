"""Protects a bookie's port: TLS, authentication before the first request, limits on connections."""
