"""Sessions of the binary protocol and the lifecycle of a broker."""
