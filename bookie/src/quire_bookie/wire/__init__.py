"""The BookKeeper protocol without input or output: decodes bytes to messages and encodes messages to bytes."""
