"""Sessions of the binary protocol and the life of the broker process."""
