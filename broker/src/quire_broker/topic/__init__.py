"""Topics with their producers and subscriptions."""
