"""Byte-level fuzzing of the bookie protocol: `python -m tests.fuzz --frames 1000000`."""
