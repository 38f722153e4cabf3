"""What a person can set, where each value came from, and a clear refusal of nonsense.

Never starts anything and never reads the rooms' own settings classes: whoever starts a process maps these values to
them. Keys are those that operators of BookKeeper and Pulsar know, where such a key exists.
"""

from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import Loaded, Origin, ProcessConfig, load

__all__ = ["BookieConfig", "Loaded", "Origin", "ProcessConfig", "load"]
