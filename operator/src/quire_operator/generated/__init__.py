"""Tables that scripts write from the models of bookies, brokers and jobs, which the operator does not import."""
