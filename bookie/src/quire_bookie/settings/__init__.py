"""Declares every setting of the bookie, the ledger client and auto-recovery, in one place each.

A frozen dataclass holds the settings of one part of the code. A field that users can configure is declared by
`declared.setting`: with the key, its unit and range, and the description. `quire_bookie.config` builds from these
declarations what it reads from flags, environment and files; the documentation and the operator's list of keys are
generated from them. This package reads nothing itself and needs no library.
"""
