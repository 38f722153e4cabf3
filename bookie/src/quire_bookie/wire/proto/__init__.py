"""Generated protobuf messages of protocol V3. Never edited by hand: see `scripts/generate_protos.sh`."""
