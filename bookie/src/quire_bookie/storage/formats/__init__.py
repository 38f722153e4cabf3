"""On-disk formats of entry logs and index: encoding and decoding, without I/O."""
