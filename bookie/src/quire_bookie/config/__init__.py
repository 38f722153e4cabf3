"""Defines the settings of each process, records the origin of each value, and rejects invalid ones clearly.

Never starts anything, and does not import the settings classes of other packages: the code that starts a process maps
these values to them. Keys are those of BookKeeper and Pulsar, if they have such a key.
"""

from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import Loaded, Origin, ProcessConfig, load

__all__ = ["BookieConfig", "Loaded", "Origin", "ProcessConfig", "load"]
