"""Damage to the files of a bookie on a real disk, and power cuts: the allowed outcomes, and a search for others.

`python -m tests.damage` (`make damage`) runs rounds; `tests/integration/test_damage_table.py` holds the table of
outcomes, which docs/durability.md shows.
"""
