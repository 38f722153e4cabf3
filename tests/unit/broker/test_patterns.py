"""Patterns match like those of Python's engine, but in bounded time; the rest is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.patterns import Pattern, pattern_of

LIMIT = 1000
ATOMS = st.sampled_from(("a", "b", ".", "[ab]", "[^a]", "[a-c-]", r"\.", r"\d", r"\W", "^", "$", "", "/", "-"))


def _join(left: str, right: str) -> str:
    return left + right


def _repeat(part: str, sign: str) -> str:
    return f"({part}){sign}"


patterns = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(_join, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds(_repeat, inner, st.sampled_from(("*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{0,2}", "{2,3}?"))),
    ),
    max_leaves=6,
)


@given(patterns, st.text("ab./-1\n", max_size=6))
def test_it_matches_what_pythons_engine_matches(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern.replace("$", r"\Z"), text) is not None
    assert Pattern(pattern, LIMIT).matches(text) is expected


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("fuzz/.*", "fuzz/ns", "fuzz"),
        (r"orders-[0-9]+\.shop", "orders-12.shop", "orders-12xshop"),
        ("a{2,3}", "aaa", "aaaa"),
        ("", "", "a"),
        ("[]a]+", "]a", "b"),
        (r"[\]a]+", "]a", "b"),
        ("x|y|", "", "xy"),
        (r"\t", "\t", "t"),
    ],
)
def test_usual_patterns(pattern: str, good: str, bad: str) -> None:
    assert pattern_of(pattern, LIMIT).matches(good)
    assert not pattern_of(pattern, LIMIT).matches(bad)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(a|a)*b", "(.*)*(.*)*x", "(a*)*$b", "a*a*a*a*a*a*a*a*b", "(a?){30}a{30}c"]
)
def test_a_pattern_that_is_exponential_in_other_engines_takes_bounded_time(pattern: str) -> None:
    assert not Pattern(pattern, LIMIT).matches("a" * 5000 + "!")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        (")", "unexpected"),
        ("[a", "missing"),
        ("[b-a]", "range"),
        ("*", "repetition operator"),
        ("a**", "repetition operator"),
        ("a++", "repetition operator"),
        (r"(a)\1", "escape"),
        ("(?=a)", "operator"),
        ("\\", "trailing"),
        ("[a&&b]", "&&"),
        ("x" * 2000, "2000 characters"),
        ("((a{100}){100}){100}", "repetition size"),
        ("(){0,9999}", "repetition size"),
        ("a{9999}", "repetition size"),
    ],
)
def test_unbounded_or_unsupported_constructs_are_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Pattern(pattern, LIMIT)


def test_a_pattern_has_at_most_so_many_characters() -> None:
    longest = f"[{'x' * (LIMIT - 2)}]"
    assert Pattern(longest, LIMIT) is not None
    with pytest.raises(ValueError, match=f"the limit is {LIMIT}"):
        Pattern(longest + "x", LIMIT)
