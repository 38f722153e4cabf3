"""Hostile input for real servers in this process.

Generated: `targets` runs the servers and sends; `requests`, `pulsar` and `bookkeeper` draw HTTP requests and sessions
of both binary protocols; `watch` observes the process. Recorded and damaged: `damage` runs `codecs`, `bookie` and
`gate` on the frames of `frames`. The tests of this folder run a fixed number of examples; `make fuzz` runs for a time.
"""
