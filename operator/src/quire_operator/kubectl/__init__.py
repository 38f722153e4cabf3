"""`kubectl quire`: inspects and drains bookies and brokers. Connects only to the API server."""
