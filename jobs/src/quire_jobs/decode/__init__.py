"""Decodes entries to messages and typed rows. Pure: bytes and Arrow in, Arrow out; no network, no Spark."""
