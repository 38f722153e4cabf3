"""Mutation tests of the protocol modules: which small faults unit tests catch, and which only the simulator catches.

`python -m tests.mutation` (`make mutants`) draws mutants of each module of `targets.py`, with the operators of
cosmic-ray and one that drops a statement. A parent with all modules loaded forks one process for each mutant and stage,
which replaces the loaded functions by the mutated code and runs the unit tests of the module, or seeds of matching
scenarios.
"""
