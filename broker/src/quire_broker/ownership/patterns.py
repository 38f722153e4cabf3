"""Matches regular expressions from administrators in time bounded by the sizes of pattern and text. Pure.

Python's engine tries one way to match after the other, and a few characters make it run forever. This one follows all
ways at once: each character of the text costs at most one check of each state of the pattern.

It supports literals, `.`, classes, groups, `|`, `* + ? {m,n}`, their lazy forms, `^` and `$`. It refuses look-around,
back references, flags and possessive forms, which have no such bound or another meaning in Java.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from quire_broker.limits import PATTERN_CHARACTERS_MAX, PATTERN_STATES_MAX

Test: TypeAlias = Callable[[str], object]
"""Whether one character matches."""
_DEPTH_MAX: Final = 50
_CACHED_MAX: Final = 1024
_CLASSES: Final = frozenset("dDwWsS")
_SETS: Final = ("&&", "--", "||", "~~")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_COUNT = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\\[])*\]", re.DOTALL)
_NOT_KNOWN = "use literals, '.', classes, groups, '|', '*', '+', '?', '{m,n}', '^' and '$'"


@dataclass(slots=True)
class _Char:
    test: Test


@dataclass(slots=True)
class _Edge:
    """`^` or `$`."""

    at_start: bool


@dataclass(slots=True)
class _Cat:
    parts: "list[_Node]" = field(default_factory=list)


@dataclass(slots=True)
class _Alt:
    ways: "list[_Node]"


@dataclass(slots=True)
class _Repeat:
    part: "_Node"
    low: int
    high: int | None


_Node: TypeAlias = _Char | _Edge | _Cat | _Alt | _Repeat


@dataclass(slots=True)
class _Split:
    """Continues at both states."""

    first: int
    second: int


class _Parser:
    """Parses one pattern to a tree."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        """Return the tree of the whole pattern. ValueError."""
        found = self._alternatives()
        if self._at < len(self._text):
            raise ValueError(f"unbalanced ')' at {self._at}")
        return found

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _alternatives(self) -> _Node:
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else _Alt(ways)

    def _sequence(self) -> _Node:
        found = _Cat()
        while self._next() not in ("", "|", ")"):
            found.parts.append(self._repeated(self._atom()))
        return found

    def _repeated(self, part: _Node) -> _Node:
        if self._take("*"):
            found = _Repeat(part, 0, None)
        elif self._take("+"):
            found = _Repeat(part, 1, None)
        elif self._take("?"):
            found = _Repeat(part, 0, 1)
        elif (count := _COUNT.match(self._text, self._at)) is not None:
            self._at = count.end()
            low = int(count[1])
            found = _Repeat(part, low, int(count[3]) if count[3] else None if count[2] else low)
        else:
            return part
        self._take("?")  # lazy: this does not affect whether the whole text matches
        if self._next() in ("*", "+", "?") or _COUNT.match(self._text, self._at) is not None:
            raise ValueError(f"{self._text[self._at]!r} after a repetition at {self._at}: {_NOT_KNOWN}")
        return found

    def _atom(self) -> _Node:
        if self._take("("):
            return self._group()
        if self._take("^"):
            return _Edge(at_start=True)
        if self._take("$"):
            return _Edge(at_start=False)
        if self._take("."):
            return _Char(lambda one: one != "\n")
        if self._take("\\"):
            return self._escape()
        if self._next() == "[":
            found = _CLASS.match(self._text, self._at)
            if found is None:
                raise ValueError(f"a class at {self._at} without its end, or with another '[' inside")
            if any(sign in found[0] for sign in _SETS):
                raise ValueError(f"class {found[0]}: operations on sets of characters are not supported")
            self._at = found.end()
            return _Char(_class_of(found[0]))
        if self._next() in ("*", "+", "?", "{"):
            raise ValueError(f"{self._next()!r} at {self._at} has nothing to repeat; write \\{self._next()} for itself")
        one = self._next()
        self._at += 1
        return _Char(one.__eq__)

    def _group(self) -> _Node:
        if self._next() == "?" and not self._take("?:"):
            raise ValueError(f"'(?' at {self._at - 1} is not supported: {_NOT_KNOWN}")
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"groups are more than {_DEPTH_MAX} deep")
        found = self._alternatives()
        if not self._take(")"):
            raise ValueError("a group without its end")
        self._depth -= 1
        return found

    def _escape(self) -> _Node:
        one = self._next()
        self._at += 1
        if one in _CLASSES and one:
            return _Char(_class_of(f"\\{one}"))
        if one in _CONTROLS:
            return _Char(_CONTROLS[one].__eq__)
        if not one or one.isalnum():
            raise ValueError(f"'\\{one}' at {self._at - 2} is not supported: {_NOT_KNOWN}")
        return _Char(one.__eq__)


def _class_of(text: str) -> Test:
    """Return a test by Python's engine, which sees only one character."""
    try:
        return re.compile(text, re.ASCII).fullmatch
    except re.error as error:
        raise ValueError(f"class {text}: {error}") from None


class Pattern:
    """A pattern as a list of states; the last one is reached when the text matches."""

    __slots__ = ("_states",)

    def __init__(self, text: str) -> None:
        """ValueError with the error in the pattern."""
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise ValueError(f"{len(text)} characters; the limit is {PATTERN_CHARACTERS_MAX}")
        self._states: list[Test | _Edge | _Split] = []
        self._add(_Parser(text).parse())

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        end, goal = len(text), len(self._states)
        here = self._reached((0,), 0, end)
        for at, one in enumerate(text, 1):
            steps = [state + 1 for state in here if state < goal and self._fits(state, one)]
            if not steps:
                return False
            here = self._reached(steps, at, end)
        return goal in here

    def _fits(self, state: int, one: str) -> bool:
        test = self._states[state]
        assert not isinstance(test, _Edge | _Split)
        return bool(test(one))

    def _reached(self, states: Iterable[int], at: int, end: int) -> set[int]:
        """Return the states that wait for a character, and the final state, that are reached without one."""
        found, seen, left = set(), set(), list(states)
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            what = self._states[state] if state < len(self._states) else None
            if isinstance(what, _Split):
                left += (what.first, what.second)
            elif isinstance(what, _Edge):
                if at == (0 if what.at_start else end):
                    left.append(state + 1)
            else:
                found.add(state)
        return found

    def _add(self, node: _Node) -> None:
        states = self._states
        if len(states) > PATTERN_STATES_MAX:
            raise ValueError(f"its repetitions make more than {PATTERN_STATES_MAX} states")
        match node:
            case _Char():
                states.append(node.test)
            case _Edge():
                states.append(node)
            case _Cat():
                for part in node.parts:
                    self._add(part)
            case _Alt():
                self._add_ways(node.ways)
            case _Repeat():
                self._add_repeat(node)

    def _add_ways(self, ways: list[_Node]) -> None:
        states, ends = self._states, []
        for way in ways[:-1]:
            split = _Split(len(states) + 1, 0)
            states.append(split)
            self._add(way)
            ends.append(_Split(0, 0))
            states.append(ends[-1])
            split.second = len(states)
        self._add(ways[-1])
        for end in ends:
            end.first = end.second = len(states)

    def _add_repeat(self, node: _Repeat) -> None:
        if node.high is not None and node.high < node.low:
            raise ValueError(f"{{{node.low},{node.high}}}: the first number must be the smaller one")
        states = self._states
        for _ in range(node.low):
            before = len(states)
            self._add(node.part)
            if len(states) == before:
                return  # of nothing
        if node.high is None:
            at = len(states)
            split = _Split(at + 1, 0)
            states.append(split)
            self._add(node.part)
            states.append(_Split(at, at))
            split.second = len(states)
            return
        splits = []
        for _ in range(node.high - node.low):
            splits.append(_Split(len(states) + 1, 0))
            states.append(splits[-1])
            self._add(node.part)
        for split in splits:
            split.second = len(states)


@lru_cache(maxsize=_CACHED_MAX)
def pattern_of(text: str) -> Pattern:
    """Return the pattern of a text; the same object for the same text. ValueError."""
    return Pattern(text)
