"""`kubectl quire`: what a person asks about bookies and brokers, through the API server and nothing else."""
