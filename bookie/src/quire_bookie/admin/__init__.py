"""The HTTP server of a bookie: health, readiness, metrics, and BookKeeper's admin paths.

Imports nothing itself: a broker uses `listening` without the bookie's internals, and the serving process imports the
modules with aiohttp when it starts to serve.
"""
