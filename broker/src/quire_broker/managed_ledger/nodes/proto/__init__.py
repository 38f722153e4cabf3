"""Generated message classes; see scripts/generate_protos.sh."""
