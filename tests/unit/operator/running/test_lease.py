"""Who may take a lease."""

from typing import Any

import pytest

from quire_operator.running.lease import Watched, may_take, watched


def lease(version: str, holder: str = "other", duration: int | None = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder} | ({} if duration is None else {"leaseDurationSeconds": duration})
    return {"metadata": {"resourceVersion": version}, "spec": spec}


def test_a_lease_is_as_old_as_the_time_for_which_we_have_seen_it_unchanged() -> None:
    first = watched(None, lease("1"), 100.0)
    assert watched(first, lease("1"), 110.0).since_s == 100.0
    assert watched(first, lease("2"), 110.0).since_s == 110.0


@pytest.mark.parametrize(
    ("holder", "since_s", "now_s", "taken"),
    [
        ("other", 100.0, 100.0, False),
        ("other", 100.0, 115.0, False),  # its whole duration must have passed
        ("other", 100.0, 115.1, True),
        ("me", 100.0, 100.0, True),
        ("", 100.0, 100.0, True),  # given back
    ],
)
def test_a_lease_is_taken_only_from_one_who_was_silent_for_its_whole_duration(
    holder: str, since_s: float, now_s: float, taken: bool
) -> None:
    assert may_take(Watched("1", since_s, 15.0, holder), "me", now_s) is taken


def test_a_lease_that_somebody_wrote_without_a_duration_has_ours() -> None:
    assert watched(None, lease("1", duration=None), 0.0).duration_s == 15.0
    assert watched(None, {"metadata": {"resourceVersion": "1"}}, 0.0).holder == ""
