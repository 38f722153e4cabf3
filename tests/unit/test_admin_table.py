"""The comparison behind docs/compatibility.md: which outputs count as the same, and what a row says."""

import pytest

from tests.compat.admin.commands import policy_lines
from tests.compat.admin.comparing import Ran, Verdict, difference, judge


def ok(text: str) -> Ran:
    return Ran(0, text, "")


def failed(text: str) -> Ran:
    return Ran(1, "", text)


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        ("pulsar://localhost:6650", "pulsar://127.0.0.1:41234"),
        ("12:3:-1", "7:3:-1"),
        ('{"a": [2, 1]}', '{"a": [1, 2]}'),
        ("b\na\n", "a\nb\n"),
        ('{"ledgerId": 3, "entryId": 1}', '{"ledgerId": 9, "entryId": 1}'),
        ('{"batchSize": 0,\n"ledgerId": 3,\n"entryId": 1}', '{"entryId": 1,\n"ledgerId": 4,\n"batchSize": 0}'),
        ('{"at": 1795821521487, "a": 1}', '{"a": 1, "at": 1695821521487}'),
        ("alice [produce, consume]", "alice [consume, produce]"),
    ],
)
def test_ids_addresses_and_order_do_not_count(stock: str, ours: str) -> None:
    assert judge(ok(stock), ok(ours), how="=") == (Verdict.SAME, "")


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        ("60", "null"),
        ("12:3:-1", "12:4:-1"),
        ('{"a": 1}', '{"a": 2}'),
        ('{"ledgerId": 1}', '{"ledgerId": "1"}'),
        ('{"at": 1795821521487}', '{"at": "1795821521487"}'),
        ("alice [produce]", "alice [produce, consume]"),
        ("x", ""),
    ],
)
def test_other_output_is_a_difference(stock: str, ours: str) -> None:
    verdict, why = judge(ok(stock), ok(ours), how="=")
    assert (verdict, bool(why)) == (Verdict.DIFFERENT, True)


def test_statistics_are_compared_by_names_and_types() -> None:
    assert judge(ok('{"a": 1, "b": []}'), ok('{"a": 5.5, "more": 1}'), how="~")[0] is Verdict.SAME
    assert judge(ok('{"a": {"c": 1}}'), ok('{"a": {}}'), how="~") == (Verdict.DIFFERENT, "lacks `a.c`")
    assert judge(ok('{"since": "2026"}'), ok('{"since": 5}'), how="~") == (Verdict.DIFFERENT, "another type of `since`")


def test_failures_are_told_apart() -> None:
    assert judge(ok("1"), failed("Not Found\n\nReason: Not Found"), how="=")[0] is Verdict.MISSING
    assert judge(ok("1"), failed("HTTP 501\n\nReason: rates are not supported"), how="=")[0] is Verdict.REFUSED
    assert judge(ok("1"), failed("Reason: Topic t not found"), how="=") == (Verdict.DIFFERENT, "Topic t not found")
    assert judge(failed("Reason: no"), failed("Reason: no"), how="=")[0] is Verdict.NEITHER


def test_a_policy_is_read_set_and_removed() -> None:
    names = ["topics set-retention", "topics get-retention", "topics remove-retention"]
    read = "topics get-retention persistent://t1/ns/policies"
    assert list(policy_lines(names)) == [
        f"= {read}",
        f"= topics set-retention persistent://t1/ns/policies --time 10m --size 10M => {read}",
        f"= topics remove-retention persistent://t1/ns/policies => {read}",
    ]


def test_bundles_of_two_clusters_are_compared_together() -> None:
    one = '{"lastStats": {"t1/ns/0x00000000_0x40000000": {"topics": 1}}}'
    other = '{"lastStats": {"public/default/0x80000000_0xc0000000": {"topics": "1"}}}'
    assert difference(one, one.replace("t1/ns", "a/b"), by_shape=True) == ""
    assert difference(one, other, by_shape=True) == "another type of `lastStats.<bundle>.topics`"
