"""Writing a ledger: add pipeline, ensemble changes, explicit LAC, closing."""
