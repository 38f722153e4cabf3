"""The computations of the analyses: pure functions from DataFrames to DataFrames. They read and write nothing."""
