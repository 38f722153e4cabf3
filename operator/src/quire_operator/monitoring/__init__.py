"""What the operator says of itself over HTTP. Measures and answers; decides nothing, and no pass waits for it."""
