"""Tokens as Pulsar has them: whose one is, and where the keys are that tell. For bookies and brokers alike."""
