"""A topic with its producers and subscriptions."""
