"""The simulator: a deterministic event loop and simulated ports on which production code runs unchanged."""
