"""Ports to the environment that asyncio does not provide: disk, index store, wall clock, randomness."""
