"""Doing: the API server and the HTTP ports of bookies and brokers. Decides nothing; what to do comes from `plan`."""
