"""Patterns of isolation policies: they match like Python's engine, but in bounded time; the rest is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.limits import PATTERN_CHARACTERS_MAX, PATTERN_STATES_MAX
from quire_broker.ownership.patterns import Pattern, pattern_of

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
    assert Pattern(pattern).matches(text) is expected


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("fuzz/.*", "fuzz/ns", "fuzz"),
        (r"orders-[0-9]+\.shop", "orders-12.shop", "orders-12xshop"),
        ("a{2,3}", "aaa", "aaaa"),
        ("a{,3}", None, None),
        ("", "", "a"),
        ("[]a]+", "]a", "b"),
        (r"[\]a]+", "]a", "b"),
        ("x|y|", "", "xy"),
        (r"\t", "\t", "t"),
    ],
)
def test_usual_patterns(pattern: str, good: str | None, bad: str | None) -> None:
    if good is None or bad is None:
        with pytest.raises(ValueError, match="nothing to repeat"):
            Pattern(pattern)
    else:
        assert pattern_of(pattern).matches(good)
        assert not pattern_of(pattern).matches(bad)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(a|a)*b", "(.*)*(.*)*x", "(a*)*$b", "a*a*a*a*a*a*a*a*b", "(a?){30}a{30}c"]
)
def test_a_pattern_that_is_exponential_in_other_engines_checks_each_character_once_per_state(pattern: str) -> None:
    looks = 0
    found = Pattern(pattern)
    for at, state in enumerate(found._states):
        if callable(state):

            def counted(one: str, test: object = state) -> object:
                nonlocal looks
                looks += 1
                assert callable(test)
                return test(one)

            found._states[at] = counted
    text = "a" * 500 + "!"
    assert not found.matches(text)
    assert looks <= len(text) * len(found._states)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "without its end"),
        (")", "unbalanced"),
        ("[a", "without its end"),
        ("[b-a]", "class"),
        ("*", "nothing to repeat"),
        ("a**", "after a repetition"),
        ("a++", "after a repetition"),
        ("a{2}{3}", "after a repetition"),
        ("a{3,2}", "the first number"),
        (r"(a)\1", "not supported"),
        ("(?=a)", "not supported"),
        ("(?i)a", "not supported"),
        (r"\bA", "not supported"),
        ("\\", "not supported"),
        ("[a&&b]", "operations"),
        ("(" * 60 + ")" * 60, "deep"),
        ("x" * 2000, "2000 characters"),
        ("((a{100}){100}){100}", f"more than {PATTERN_STATES_MAX} states"),
        ("(){0,9999}", f"more than {PATTERN_STATES_MAX} states"),
        ("a{9999}", f"more than {PATTERN_STATES_MAX} states"),
    ],
)
def test_unbounded_or_unsupported_constructs_are_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Pattern(pattern)


def test_a_pattern_has_at_most_so_many_characters() -> None:
    longest = f"[{'x' * (PATTERN_CHARACTERS_MAX - 2)}]"
    assert Pattern(longest) is not None
    with pytest.raises(ValueError, match=f"the limit is {PATTERN_CHARACTERS_MAX}"):
        Pattern(longest + "x")
