"""Policies of tenants, namespaces and topics in the metadata: bundles, quotas and others."""
