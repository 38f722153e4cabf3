"""Declares the broker's settings, as `quire_bookie.settings` does for bookies. Those of offloading are in `offload`."""
