"""Entries to messages to typed rows. Pure: bytes and Arrow in, Arrow out; no network, no Spark."""
