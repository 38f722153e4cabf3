"""The simulator's self-test: it must detect production code with one rule removed, which passes without faults.

A checker that never fails proves nothing. `python -m tests.sim.broken` (`make sim-broken`) runs each variant without
faults, where it must pass, and then under faults, seed after seed, until a checker fails.
"""

from tests.sim.broken.balancing_rules import BALANCING_RULES
from tests.sim.broken.bookie_rules import BOOKIE_RULES
from tests.sim.broken.compaction_rules import COMPACTION_RULES
from tests.sim.broken.delayed_rules import DELAYED_RULES
from tests.sim.broken.id_rules import ID_RULES
from tests.sim.broken.key_shared_rules import KEY_SHARED_RULES
from tests.sim.broken.metadata_rules import METADATA_RULES
from tests.sim.broken.operator_rules import OPERATOR_RULES
from tests.sim.broken.ownership_rules import OWNERSHIP_RULES
from tests.sim.broken.quorum_rules import QUORUM_RULES
from tests.sim.broken.reader_rules import READER_RULES
from tests.sim.broken.recovery_rules import RECOVERY_RULES
from tests.sim.broken.repair_rules import REPAIR_RULES
from tests.sim.broken.resting_rules import RESTING_RULES
from tests.sim.broken.restore_rules import RESTORE_RULES
from tests.sim.broken.shadow_rules import SHADOW_RULES
from tests.sim.broken.storage_rules import STORAGE_RULES
from tests.sim.broken.unused_rules import UNUSED_RULES
from tests.sim.broken.writer_rules import WRITER_RULES

VARIANTS = (
    *BOOKIE_RULES,
    *STORAGE_RULES,
    *WRITER_RULES,
    *QUORUM_RULES,
    *READER_RULES,
    *RECOVERY_RULES,
    *REPAIR_RULES,
    *RESTORE_RULES,
    *METADATA_RULES,
    *ID_RULES,
    *OWNERSHIP_RULES,
    *BALANCING_RULES,
    *KEY_SHARED_RULES,
    *DELAYED_RULES,
    *UNUSED_RULES,
    *RESTING_RULES,
    *SHADOW_RULES,
    *COMPACTION_RULES,
)
LONG_VARIANTS = (*OPERATOR_RULES,)
"""Variants of long scenarios: run only with `--long`, or when `--only` names them."""
