"""The REST surface that Pulsar's admin tools use."""
