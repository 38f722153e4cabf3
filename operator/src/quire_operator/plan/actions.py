"""What a plan may ask for. Each action may be done twice with the effect of once; a uid says which object is meant."""

from dataclasses import dataclass

from quire_operator.builders import Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child, as our field manager, taking fields back that others changed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeletePod:
    """End a pod so that its StatefulSet makes it anew; only the one with this uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteStatefulSet:
    """Delete it; with `orphan` its pods go on running."""

    name: str
    uid: str
    orphan: bool


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for a larger volume."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Delete a claim. With `keep_volume` its volume is first set to be retained, so that the data stays on it."""

    name: str
    uid: str
    volume: str | None
    keep_volume: bool


@dataclass(frozen=True, slots=True)
class Decommission:
    """Tell the auditor to empty a bookie and, once it is stopped, to forget it."""

    bookie: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Tell the auditor that a bookie stays."""

    bookie: str


@dataclass(frozen=True, slots=True)
class SetLostBookieDelay:
    """The cluster's value for how long a bookie may be away."""

    seconds: int


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Put our finalizer on the resource, or take it off."""

    present: bool


@dataclass(frozen=True, slots=True)
class Emit:
    """An event on the resource."""

    reason: str
    message: str
    warning: bool = False


Action = (
    Apply
    | DeletePod
    | DeleteStatefulSet
    | ResizeClaim
    | ReleaseClaim
    | Decommission
    | CancelDrain
    | SetLostBookieDelay
    | SetFinalizer
    | Emit
)
