"""The Pulsar binary protocol without input or output: bytes to commands and back."""
