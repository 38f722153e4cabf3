"""The BookKeeper protocol without input or output: bytes to messages and back."""
