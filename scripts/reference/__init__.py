"""Writes the pages of docs/reference from the code: `make reference`. A unit test fails while a page differs."""
