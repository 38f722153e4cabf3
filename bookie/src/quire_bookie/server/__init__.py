"""The bookie process: connections, request handling, registration, garbage collection."""
