"""Pure quorum decisions: write sets, acknowledgements, coverage, recovery, placement."""
