"""Broken variants: rules of the operator, each removed."""

from dataclasses import replace as changed
from typing import Any
from unittest import mock

from quire_operator.api.operations import Operation, Step
from quire_operator.plan import deletion, drain, replace, roll
from quire_operator.plan.actions import ReleaseClaim
from quire_operator.plan.observation import PoolObservation
from quire_operator.plan.operations import Move, moved
from quire_operator.running.lease import Leadership
from tests.sim.broken.variant import Variant, replaced


def _without_a_second_look() -> tuple[Any, ...]:
    def broken(operation: Operation, seen: PoolObservation) -> Move:
        return Move(moved(operation, Step.SHRINKING, seen.now_s, "empty"))

    return (mock.patch.dict(drain._STEPS, {Step.VERIFYING: broken}),)


def _silence_is_a_cookie_removed() -> tuple[Any, ...]:
    proper = drain._STEPS[Step.REMOVING_COOKIE]

    def broken(operation: Operation, seen: PoolObservation) -> Move:
        if seen.cluster is None:
            return Move(moved(operation, Step.RELEASING_CLAIMS, seen.now_s))
        return proper(operation, seen)

    return (mock.patch.dict(drain._STEPS, {Step.REMOVING_COOKIE: broken}),)


def _below_the_ensemble() -> tuple[Any, ...]:
    def broken(seen: PoolObservation, bookie: str, others: frozenset[str]) -> None:
        return None

    return (replaced(drain, "below_ensemble", broken),)


def _rolls_without_waiting() -> tuple[Any, ...]:
    proper = roll.hindrance

    def broken(seen: PoolObservation) -> str | None:
        known = None if seen.cluster is None else changed(seen.cluster, under_replicated=0, unrecoverable=0)
        return proper(changed(seen, cluster=known))

    return (replaced(roll, "hindrance", broken),)


def _claims_by_name() -> tuple[Any, ...]:
    def broken(operation: Operation, seen: PoolObservation) -> tuple[ReleaseClaim, ...]:
        claims = [claim for claim in seen.claims if claim.pod == operation.pod]
        return tuple(ReleaseClaim(claim.name, claim.uid, claim.volume, True) for claim in claims)

    return (replaced(replace, "releases", broken),)


def _claims_go_before_the_drain_ends() -> tuple[Any, ...]:
    def broken(operation: Operation | None) -> bool:
        return False

    return (replaced(deletion, "_leaves_nothing_yet", broken),)


def _writes_after_a_lost_lease() -> tuple[Any, ...]:
    def broken(self: Leadership) -> None:
        return None

    return (replaced(Leadership, "check", broken),)


OPERATOR_RULES = (
    Variant("operator: no second look before the pod goes", "operator drains", 6, _without_a_second_look),
    Variant("operator: silence is a removed cookie", "operator drains", 1, _silence_is_a_cookie_removed),
    Variant("operator: scaled below the ensemble", "operator drains", 3, _below_the_ensemble),
    Variant("operator: claims go before the drain ends", "operator drains", 4, _claims_go_before_the_drain_ends),
    Variant("operator: rolls without waiting", "operator rolls", 4, _rolls_without_waiting),
    Variant("operator: claims by name, not by uid", "operator", 9, _claims_by_name),
    Variant("operator: writes after a lost lease", "operator rolls", 2, _writes_after_a_lost_lease),
)
