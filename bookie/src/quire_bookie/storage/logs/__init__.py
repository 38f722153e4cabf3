"""Entry logs: writing, reading, walking and choosing files."""
