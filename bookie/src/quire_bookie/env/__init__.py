"""Ports to the outside that asyncio does not already give: disk, index store, wall clock, chance."""
