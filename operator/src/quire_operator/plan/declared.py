"""Decides what to do about an object that a resource declares: a tenant, namespace, topic or role. Pure.

The plan of each kind finds the differences between the object and its declaration; the rules about claims, adoption,
reverts and deletion are here, the same for all kinds:

* Before the first write, `status.managed` records that the object is ours. So a killed operator continues, and an
  object that existed before is never taken over unnoticed.
* An object that exists already is adopted if its declaration only adds to it, or with `adoptionPolicy: Always`.
* A difference that appears without a change of the spec is a change by others: it is reverted, and reported.
* Of two resources that declare the same object the older one wins; the other one changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire_operator.api import GROUP
from quire_operator.api.conditions import Truth, moved_on
from quire_operator.api.declared import AdoptionPolicy, DeclaredResource, Reverted
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import DeletionPolicy
from quire_operator.plan.actions import Action, Emit, NamespaceAction, SetFinalizer
from quire_operator.plan.declared_conditions import APPLYING, SYNCED, Outcome
from quire_operator.plan.namespace import ACTIONS_MAX
from quire_operator.plan.observation import Rejection
from quire_operator.plan.operations import rfc3339

FINALIZER = f"{GROUP}/declared"
BUSY_REQUEUE_S = 2.0
IDLE_REQUEUE_S = 60.0
DIFFERENCES_NAMED = 5
MESSAGE_MAX = 1000
NO_BROKER = "no broker of ManagedLedger {} responds: the state of the {} is not known"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan knows besides the object."""

    now_s: float
    """Seconds since the epoch."""
    ledger: ManagedLedger | None
    """The ManagedLedger that `managedLedgerRef` names; None if it certainly does not exist."""
    rival: str | None = None
    """The resource to which the object belongs, if that is another one."""
    rejected: Rejection | None = None
    """The write of this reconciliation that was rejected."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between an object and its declaration, with the actions that remove it."""

    what: str
    actions: tuple[Action | NamespaceAction, ...]
    adds: bool = False
    """The object has no other value: removing the difference overwrites nothing."""


@dataclass(frozen=True, slots=True)
class Removal:
    """How the object is deleted, or left to others."""

    delete: tuple[Action | NamespaceAction, ...] = ()
    held: str | None = None
    """Why it cannot be deleted now."""
    release: tuple[NamespaceAction, ...] = ()
    """Actions if it stays; best effort."""


@dataclass(frozen=True, slots=True)
class Case:
    """The object of one resource, compared with its declaration."""

    subject: str
    """E.g. `tenant shop`, for messages."""
    resource: DeclaredResource
    around: Surroundings
    exists: bool | None
    """None if it is not known."""
    differences: Sequence[Difference] = ()
    """Including those that create it."""
    fault: tuple[str, str] | None = None
    """Reason and message of an error that a user must fix: nothing is changed."""
    waits: tuple[str, str] | None = None
    """Reason and message of something that must exist first."""
    removal: Removal = field(default_factory=Removal)
    idle: tuple[Action | NamespaceAction, ...] = ()
    """Actions while there are no differences: they change no declared state."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions, what the status records, and how the conditions judge it."""

    outcome: Outcome
    actions: tuple[Action | NamespaceAction, ...] = ()
    managed: bool = False
    reverted: Reverted | None = None
    requeue_s: float = IDLE_REQUEUE_S


def decide(case: Case) -> Decision:
    """Return the decision. The checks go from those that forbid all writes to those that need some."""
    if case.resource.meta.deletion_timestamp is not None:
        return _deletion(case)
    at, ledger = case.around, case.resource.spec.managed_ledger_ref.name
    if at.ledger is None:
        message = f"ManagedLedger {ledger} not found in this namespace: create it"
        return _kept(case, Outcome.waiting("NoManagedLedger", message, known=False))
    if at.rival is not None:
        message = f"{case.subject} already belongs to {at.rival}: delete one of them"
        # Not managed any more: what belongs to another resource is not deleted with this one.
        return Decision(Outcome.stalled("Claimed", message))
    if case.fault is not None:
        return _kept(case, Outcome.stalled(*case.fault))
    if at.rejected is not None:
        return _kept(case, Outcome.stalled(at.rejected.reason, at.rejected.message))
    if case.exists is None:
        outcome = Outcome.unknown("NoBroker", NO_BROKER.format(ledger, case.subject))
        return _kept(case, outcome, BUSY_REQUEUE_S)
    if case.waits is not None:
        return _kept(case, Outcome.waiting(*case.waits), BUSY_REQUEUE_S)
    if at.ledger.spec.paused and (case.differences or not case.resource.status.managed):
        return _kept(case, Outcome.paused(f"ManagedLedger {ledger} is paused: no changes are made"))
    if at.ledger.meta.deletion_timestamp is not None and (case.differences or not case.resource.status.managed):
        message = f"ManagedLedger {ledger} is being deleted: no changes are made"
        return _kept(case, Outcome.waiting("ManagedLedgerDeleted", message))
    return _managed(case) if case.resource.status.managed else _claim(case)


def _kept(case: Case, outcome: Outcome, requeue_s: float = IDLE_REQUEUE_S) -> Decision:
    """Return the decision to change nothing, also not whether the object is ours."""
    status = case.resource.status
    return Decision(outcome, managed=status.managed, reverted=status.reverted, requeue_s=requeue_s)


def _claim(case: Case) -> Decision:
    """Return the decision about an object that is not ours yet: adopt it, or report why not."""
    against = [one.what for one in case.differences if not one.adds]
    if case.exists and against and case.resource.spec.adoption_policy is not AdoptionPolicy.ALWAYS:
        message = (
            f"{case.subject} exists and differs: {_listed(against)}; change the spec to what exists, or set "
            "adoptionPolicy to Always to overwrite it"
        )
        return Decision(Outcome.stalled("NotAdopted", message))
    if FINALIZER not in case.resource.meta.finalizers:
        return Decision(Outcome.applying("claiming it"), (SetFinalizer(True),), requeue_s=0.0)
    verb = "Adopted" if case.exists else "Claimed"
    return Decision(Outcome.applying("claiming it"), (Emit(verb, case.subject),), managed=True, requeue_s=0.0)


def _managed(case: Case) -> Decision:
    """Return the decision about an object of ours: remove the differences, and report those that others made."""
    if not case.differences:
        paused = case.around.ledger is not None and case.around.ledger.spec.paused
        idle = () if paused else case.idle
        requeue_s = BUSY_REQUEUE_S if idle else IDLE_REQUEUE_S
        return Decision(Outcome.in_sync(), idle, True, case.resource.status.reverted, requeue_s)
    what = _listed([one.what for one in case.differences])
    actions: list[Action | NamespaceAction] = [action for one in case.differences for action in one.actions]
    actions = actions[:ACTIONS_MAX]
    reverted = case.resource.status.reverted
    if _was_synced(case):
        reverted = Reverted(at=rfc3339(case.around.now_s), what=what)
        actions.insert(0, Emit("RevertingDrift", f"{case.subject}: {what}", warning=True))
    return Decision(Outcome.applying(what), tuple(actions), managed=True, reverted=reverted, requeue_s=BUSY_REQUEUE_S)


def _was_synced(case: Case) -> bool:
    """Return whether the object was as this generation of the spec declares it, and is not just being changed."""
    status = case.resource.status
    applying = any(one.type == SYNCED and one.reason == APPLYING for one in status.conditions)
    return status.synced_generation == case.resource.meta.generation and not applying


def _deletion(case: Case) -> Decision:
    """Return the decision for a resource that is being deleted. Only an object of ours is deleted, if at all."""
    if FINALIZER not in case.resource.meta.finalizers:
        return Decision(Outcome.deleting())
    at, ledger = case.around, case.resource.spec.managed_ledger_ref.name
    free = Decision(Outcome.deleting(), (SetFinalizer(False),), requeue_s=0.0)
    if not case.resource.status.managed or at.rival is not None:
        return free
    released = Decision(Outcome.deleting(), (*case.removal.release, SetFinalizer(False)), requeue_s=0.0)
    if case.resource.spec.deletion_policy is DeletionPolicy.RETAIN:
        return released
    if at.ledger is None:
        message = f"ManagedLedger {ledger} does not exist any more: {case.subject} was not deleted"
        return Decision(Outcome.deleting(), (Emit("NotDeleted", message, warning=True), SetFinalizer(False)))
    held: str | None = None
    if case.exists is None:
        held = (
            f"deletionPolicy is Delete, but no broker of ManagedLedger {ledger} responds: start its brokers, "
            f"or set deletionPolicy to Retain to keep the {case.subject}"
        )
    elif not case.exists:
        return released
    elif at.rejected is not None:
        held = at.rejected.message
    else:
        held = case.removal.held
    if held is not None:
        return Decision(
            Outcome.held(held), managed=True, reverted=case.resource.status.reverted, requeue_s=BUSY_REQUEUE_S
        )
    outcome = Outcome.held(f"deleting the {case.subject}")
    return Decision(outcome, case.removal.delete, managed=True, requeue_s=BUSY_REQUEUE_S)


def _listed(texts: Sequence[str]) -> str:
    """Return the first differences as one text of bounded length."""
    more = len(texts) - DIFFERENCES_NAMED
    shown = [*texts[:DIFFERENCES_NAMED], *([f"{more} more"] if more > 0 else [])]
    return "; ".join(shown)[:MESSAGE_MAX]


def rendered(case: Case, decision: Decision) -> dict[str, object]:
    """Return the fields of the status that all kinds have."""
    generation, status = case.resource.meta.generation, case.resource.status
    now = rfc3339(case.around.now_s)
    return {
        "observed_generation": generation,
        "managed": decision.managed,
        "synced_generation": generation if decision.outcome.synced is Truth.TRUE else status.synced_generation,
        "reverted": decision.reverted,
        "conditions": moved_on(status.conditions, decision.outcome.findings(), now, generation),
    }
