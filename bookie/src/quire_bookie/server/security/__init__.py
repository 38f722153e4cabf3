"""Who may talk to a bookie and how: TLS, authentication before the first request, limits on connections."""
