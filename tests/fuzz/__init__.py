"""Hostile input for real servers in this process.

Made up: `targets` hold the servers and send; `requests`, `pulsar` and `bookkeeper` draw HTTP requests and sessions of
both binary protocols; `watch` looks at the process. Recorded and damaged: `damage` runs `codecs`, `bookie` and `gate`
on the frames of `frames`. The tests of this folder run a fixed number of examples; `make fuzz` runs until time is up.
"""
