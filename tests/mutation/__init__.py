"""Mutation tests of the protocol modules: which small faults do the unit tests catch, and which the simulator alone?

`python -m tests.mutation` (`make mutants`) draws mutants of each module of `targets.py`, with the operators of
cosmic-ray and one that drops a statement. A warm parent forks one process for each mutant and stage, which puts the
mutated code in place of the loaded functions and runs the unit tests of the module, or seeds of fitting scenarios.
"""
