"""Updates of conditions."""

from quire_operator.api.conditions import Condition, Finding, Truth, moved_on

FIRST, SECOND = "2030-01-01T00:00:00Z", "2030-01-01T00:05:00Z"


def ready(status: Truth, reason: str = "Because") -> Finding:
    return Finding(type="Ready", status=status, reason=reason)


def test_transition_time_changes_only_with_the_status() -> None:
    before = moved_on((), [ready(Truth.FALSE)], FIRST, 1)
    same = moved_on(before, [ready(Truth.FALSE, "OtherReason")], SECOND, 2)
    assert same == (
        Condition(
            type="Ready",
            status=Truth.FALSE,
            reason="OtherReason",
            last_transition_time=FIRST,
            observed_generation=2,
        ),
    )
    assert moved_on(same, [ready(Truth.TRUE)], SECOND, 2)[0].last_transition_time == SECOND


def test_a_condition_without_a_current_value_is_dropped() -> None:
    before = moved_on((), [ready(Truth.TRUE), Finding(type="Old", status=Truth.TRUE, reason="R")], FIRST, 1)
    assert [condition.type for condition in moved_on(before, [ready(Truth.TRUE)], SECOND, 1)] == ["Ready"]
