"""Entry logs: writing, reading and walking them, and choosing their folders."""
