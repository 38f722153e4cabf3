"""Who may use a broker and for what: TLS, tokens and certificates, permissions of namespaces and topics."""
