"""Cursors: the durable progress of subscriptions, and how it is stored."""
