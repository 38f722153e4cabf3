"""Decides actions and status from an observation. Pure: no I/O, no clock; equal observations give equal plans.

A long operation is a state machine in `.status.operation`. Each reconciliation acts on the step that it *read* and
writes the next one. So the first action of a step is taken only after the step is recorded, and an operator that is
killed at any point resumes there.
"""
