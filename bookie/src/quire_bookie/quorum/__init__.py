"""Pure quorum decisions: write sets, acknowledgements, LAC coverage, recovery, placement."""
