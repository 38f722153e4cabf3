"""Access to the API server and the HTTP ports of bookies and brokers. Performs the actions that `plan` decides."""
