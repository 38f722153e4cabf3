"""`quire broker`, `quire standalone` and the commands that talk to them."""
