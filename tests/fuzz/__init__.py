"""Hostile input for real servers in this process: HTTP requests, and sessions of both binary protocols.

The targets hold the servers and send; `requests`, `pulsar` and `bookies` make up what is sent; `watch` looks at the
process. `tests/security/test_fuzz.py` runs a fixed number of examples; `make fuzz` runs for as long as it is told.
"""
