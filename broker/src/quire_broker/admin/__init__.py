"""The REST API that Pulsar's admin tools use, and Quire's own paths."""
