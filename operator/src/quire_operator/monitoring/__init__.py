"""The operator's metrics and probes over HTTP. Decides nothing, and no reconciliation waits for it."""
