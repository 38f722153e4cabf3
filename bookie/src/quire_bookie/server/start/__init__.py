"""Starts a bookie: folders, identity, replay of the journal, registration."""
