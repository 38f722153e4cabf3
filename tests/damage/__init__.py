"""Damage to the files of a bookie on a real disk, and loss of power: what may come of it, and a search for the rest.

`python -m tests.damage` (`make damage`) runs rounds; `tests/integration/test_damage_table.py` holds the table of
outcomes, which docs/durability.md shows.
"""
