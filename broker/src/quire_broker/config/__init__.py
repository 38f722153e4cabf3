"""The settings of a broker as pydantic models: names, defaults, units and limits."""
