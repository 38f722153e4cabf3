"""Our `dataclass` against the one of the standard library: the same text of a class, decorated by each."""

import copy
import dataclasses
import inspect
import itertools
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quire_bookie.dataclass

Decorator = Callable[..., Any]
OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen, slots, eq in itertools.product((False, True), (False, True), (True, False))
]
VALUES = st.one_of(
    st.integers(-2, 2), st.just(float("nan")), st.text(max_size=1), st.lists(st.integers(0, 1), max_size=1)
)


def shapes(dataclass: Decorator, options: dict[str, bool]) -> dict[str, Any]:
    """Return classes of all the forms that the project uses, made by one of the decorators."""

    @dataclass(**options)
    class Empty:
        pass

    @dataclass(**options)
    class One:
        a: Any

    @dataclass(**options)
    class Several:
        """It has a docstring."""

        limit: ClassVar[int] = 3
        a: Any
        b: Any = 1
        c: Any = field(default_factory=list)
        secret: Any = field(default="", repr=False)
        apart: Any = field(default=None, compare=False)
        hashed: Any = field(default=0, hash=False)
        named: Any = field(default=5, kw_only=True)

    @dataclass(**options)
    class Later:
        a: Any = 0
        made: Any = field(init=False)
        given: Any = field(init=False, default=4)
        filled: Any = field(init=False, default_factory=dict)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", [self.a])

    @dataclass(**options)
    class Child(Several):
        d: Any = 7
        b: Any = 2

    @dataclass(**options)
    class OwnMethods:
        a: Any = 0

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnMethods)

        def __hash__(self) -> int:
            return 5

    @dataclass(**options)
    class OwnEquality:
        a: Any = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnEquality)

    class Plain(One):
        def __init__(self, a: Any) -> None:
            super().__init__(a)

    return {each.__name__: each for each in (Empty, One, Several, Later, Child, OwnMethods, OwnEquality, Plain)}


def outcome(do: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type of its error and its text without the names of methods."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001  errors are compared, too
        return type(error), re.sub(r"\S+\(\)|method\(\)", "", str(error))


def described(cls: Any, positional: list[Any], named: dict[str, Any]) -> Any:
    """Return everything that can be seen of an object of the class, made from these arguments."""
    one = outcome(lambda: cls(*positional, **named))
    if isinstance(one, tuple):
        return one
    names = [each.name for each in dataclasses.fields(cls)]
    other = cls(*positional, **named)
    return {
        "repr": re.sub(r".*<locals>\.", "", repr(one)),
        "values": repr([getattr(one, name, "unset") for name in names]),
        "equal": one == other,
        "equal to itself": one == one,
        "equal to another class": one == 5,
        "not equal": one != other,
        "hash": outcome(lambda: hash(one) == hash(other)),
        "hash of values": outcome(lambda: hash(one)) if cls.__hash__ is not object.__hash__ else "identity",
        "set": outcome(lambda: setattr(one, names[0] if names else "x", 3)),
        "set other": outcome(lambda: setattr(one, "other", 3)),
        "delete": outcome(lambda: delattr(other, names[0] if names else "x")),
        "match": cls.__match_args__,
        "slots": getattr(cls, "__slots__", None),
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(positional=st.lists(VALUES, max_size=4), name=st.sampled_from(["", "b", "named", "c", "d", "made", "no such"]))
def test_objects_behave_as_those_of_the_standard_library(
    options: dict[str, bool], positional: list[Any], name: str
) -> None:
    ours, theirs = SHAPES[str(options)]
    for kind, cls in ours.items():
        named = {name: 9} if name else {}
        seen, expected = described(cls, positional, named), described(theirs[kind], positional, named)
        for each in ("set other", "set", "delete"):
            if "super(type, obj)" in str(expected):  # in Python 3.11 it asks `super` of the class that had no slots
                expected[each] = seen[each] = "a fault of the standard library"
        assert seen == expected, kind


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fields_replacement_and_copies_work(options: dict[str, bool]) -> None:
    for cls in SHAPES[str(options)][0].values():
        names = [each.name for each in dataclasses.fields(cls) if each.init]
        one = cls(**dict.fromkeys(names, 6))
        if names:
            changed = dataclasses.replace(one, **{names[0]: 8})
            assert (getattr(changed, names[0]), getattr(one, names[0])) == (8, 6)
        assert dataclasses.asdict(one).keys() == {each.name for each in dataclasses.fields(cls)}
        for copied in (copy.copy(one), copy.deepcopy(one)):
            assert dataclasses.astuple(copied) == dataclasses.astuple(one)


@quire_bookie.dataclass.dataclass(frozen=True, slots=True)
class Sent:
    """A class that pickle finds by its name."""

    a: int
    b: str = "x"


def test_a_frozen_object_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sent(3))) == Sent(3)


def test_an_object_in_itself_has_an_end() -> None:
    @quire_bookie.dataclass.dataclass(slots=True)
    class Ring:
        inner: Any = None

    ring = Ring()
    ring.inner = ring
    assert repr(ring).endswith("Ring(inner=...)")


def test_a_frozen_class_with_its_own_assignment_is_refused() -> None:
    with pytest.raises(TypeError, match="remove one of the two"):

        @quire_bookie.dataclass.dataclass(frozen=True)
        class Wrong:
            a: int

            def __setattr__(self, name: str, value: object) -> None:
                raise NotImplementedError


def test_a_method_is_compiled_once() -> None:
    first = Sent.__hash__
    assert hash(Sent(1)) == hash(Sent(1))
    compiled = Sent.__hash__
    assert hash(Sent(2)) != hash(Sent(1))
    assert Sent.__hash__ is compiled
    assert inspect.getclosurevars(compiled).nonlocals == {}
    assert first is compiled or first.__qualname__ == compiled.__qualname__ == "Sent.__hash__"
    with pytest.raises(FrozenInstanceError):
        Sent(1).a = 2  # type: ignore[misc]


def test_our_modules_use_it() -> None:
    root = Path(quire_bookie.dataclass.__file__).parents[3]
    sources = [path for part in ("bookie", "broker") for path in (root / part / "src").rglob("*.py")]
    assert len(sources) > 500
    for path in sources:
        text = path.read_text()
        if path.name == "dataclass.py":
            continue
        assert "InitVar" not in text, f"{path}: quire_bookie.dataclass does not support it"
        if "@dataclass" in text and "order=True" not in text:
            assert "from quire_bookie.dataclass import dataclass" in text, path


SHAPES = {
    str(options): (shapes(quire_bookie.dataclass.dataclass, options), shapes(dataclasses.dataclass, options))
    for options in OPTIONS
}
