"""Topics as ordered lists of ledgers, with durable cursors."""
