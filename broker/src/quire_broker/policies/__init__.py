"""What the metadata say of tenants, namespaces and topics: bundles, quotas and other policies."""
