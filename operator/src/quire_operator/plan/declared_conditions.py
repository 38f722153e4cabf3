"""The conditions of resources that declare objects of the brokers. Pure.

`Outcome` computes all of them together, so that these invariants hold (see `test_declared`):

* Ready=True implies Synced=True, Reconciling=False and Stalled=False.
* Ready is not True implies Reconciling=True or Stalled=True, unless the ManagedLedger is paused.
* Reconciling=True and Stalled=True exclude each other.
"""

from dataclasses import dataclass

from quire_operator.api.conditions import Finding, Truth

READY, SYNCED, RECONCILING, STALLED = "Ready", "Synced", "Reconciling", "Stalled"
APPLYING = "Applying"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a reconciliation ended: the object's state, and whether the operator or a user has to act next."""

    ready: Truth
    synced: Truth
    reason: str
    message: str = ""
    reconciling: bool = False
    needs_user: bool = False

    @classmethod
    def in_sync(cls) -> "Outcome":
        """The object is as declared."""
        return cls(Truth.TRUE, Truth.TRUE, "InSync")

    @classmethod
    def applying(cls, message: str) -> "Outcome":
        """The operator works on it."""
        return cls(Truth.FALSE, Truth.FALSE, APPLYING, message, reconciling=True)

    @classmethod
    def waiting(cls, reason: str, message: str, *, known: bool = True) -> "Outcome":
        """Something else must exist first. `known`: the state of the object is known."""
        synced = Truth.FALSE if known else Truth.UNKNOWN
        return cls(Truth.FALSE, synced, reason, message, reconciling=True)

    @classmethod
    def unknown(cls, reason: str, message: str) -> "Outcome":
        """The state of the object is not known."""
        return cls(Truth.UNKNOWN, Truth.UNKNOWN, reason, message, reconciling=True)

    @classmethod
    def stalled(cls, reason: str, message: str) -> "Outcome":
        """Nothing changes until a user acts."""
        return cls(Truth.FALSE, Truth.FALSE, reason, message, needs_user=True)

    @classmethod
    def paused(cls, message: str) -> "Outcome":
        """The object differs, and the operator may not change it."""
        return cls(Truth.FALSE, Truth.FALSE, "Paused", message)

    @classmethod
    def held(cls, message: str) -> "Outcome":
        """The resource is being deleted, and waits."""
        return cls(Truth.FALSE, Truth.FALSE, "DeletionHeld", message, reconciling=True)

    @classmethod
    def deleting(cls) -> "Outcome":
        """The resource is being deleted, and nothing holds it."""
        return cls(Truth.FALSE, Truth.FALSE, "Deleting", reconciling=True)

    def findings(self) -> list[Finding]:
        """Return all conditions."""
        idle = "Stalled" if self.needs_user else ("NothingToDo" if self.ready is Truth.TRUE else self.reason)
        return [
            Finding(type=READY, status=self.ready, reason=self.reason, message=self.message),
            Finding(type=SYNCED, status=self.synced, reason=self.reason, message=self.message),
            Finding(
                type=RECONCILING,
                status=Truth.TRUE if self.reconciling else Truth.FALSE,
                reason=self.reason if self.reconciling else idle,
            ),
            Finding(
                type=STALLED,
                status=Truth.TRUE if self.needs_user else Truth.FALSE,
                reason=self.reason if self.needs_user else "NotStalled",
                message=self.message if self.needs_user else "",
            ),
        ]
