"""From what was seen to what is to be done and said. Pure: no I/O, no clock; the same view gives the same step.

A long operation is a state machine in `.status.operation`. Each pass acts on the step that it *read*, and writes the
next one; the first action of a step is thus taken only once the step is on record, and an operator killed anywhere goes
on.
"""
