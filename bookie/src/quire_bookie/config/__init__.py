"""Reads the settings of each process, records the origin of each value, and rejects invalid ones clearly.

Never starts anything. Keys are those of BookKeeper and Pulsar, if they have such a key. The settings of the parts are
declared in `quire_bookie.settings`.
"""
