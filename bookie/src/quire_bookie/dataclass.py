"""Provides `dataclass` of the standard library with methods that are compiled at their first use.

The standard one compiles up to six methods of each class at import, a millisecond a class. A start of the standalone
imports 420 such classes, and few of their methods are ever called (docs/decisions/0051).
"""

import dataclasses
import reprlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """Do what `dataclasses.dataclass` does. `InitVar` is not supported, and neither are its other options."""

        def make(cls: type) -> type:
            return _made(cls, frozen=frozen, slots=slots, eq=eq)

        return make if cls is None else make(cls)


_MISSING = object()


def _made(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    own = dict(vars(cls))  # a method that the class has itself stays
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    methods: dict[str, Callable[[type], Callable[..., Any]]] = {"__repr__": _repr_of}
    methods["__init__"] = _frozen_init_of if frozen else _init_of
    if eq:
        methods["__eq__"] = _eq_of
        if own.get("__hash__") is None:  # also where Python made it None because the class has an __eq__
            if frozen:
                methods["__hash__"] = _hash_of
                own.pop("__hash__", None)
            else:
                setattr(made, "__hash__", None)  # noqa: B010  mypy does not let it be assigned
    for name, build in methods.items():
        if name not in own:
            _compile_later(made, name, build)
    if frozen:
        _freeze(made, own, slots=slots)
    return made


def _compile_later(cls: type, name: str, build: Callable[[type], Callable[..., Any]]) -> None:
    """Give the class a method that replaces itself at its first call."""

    def first(self: Any, *args: Any, **given: Any) -> Any:
        method = build(cls)
        method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method(self, *args, **given)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, first)


def _freeze(cls: Any, own: dict[str, Any], *, slots: bool) -> None:
    names = {field.name for field in dataclasses.fields(cls)}

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    changing: dict[str, Any] = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    for name, method in changing.items():
        if name in own:
            raise TypeError(f"{cls.__qualname__} is frozen and has its own {name}: remove one of the two")
        setattr(cls, name, method)
    copying: dict[str, Any] = {"__getstate__": __getstate__, "__setstate__": __setstate__}
    for name, method in copying.items() if slots else ():  # attributes that copy and pickle would assign
        if name not in own:
            setattr(cls, name, method)


def _compiled(cls: type, parameters: str, lines: list[str], known: dict[str, Any]) -> Callable[..., Any]:
    source = f"def method(self{parameters}):\n" + "".join(f"    {line}\n" for line in lines or ["pass"])
    exec(compile(source, f"<dataclass {cls.__qualname__}>", "exec"), known)
    method: Callable[..., Any] = known["method"]
    return method


def _init_of(cls: type, *, frozen: bool = False) -> Callable[..., Any]:
    known: dict[str, Any] = {"_MISSING": _MISSING, "_set": object.__setattr__, "__name__": cls.__module__}
    lines: list[str] = []
    positional: list[str] = []
    by_name: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _MISSING else {name}" if field.init else f"_make_{name}()"
            parameter = f"{name}=_MISSING"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            value = name if field.init else f"_default_{name}"
            parameter = f"{name}=_default_{name}"
        elif not field.init:
            continue
        if field.init:
            (by_name if field.kw_only else positional).append(parameter)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = [*positional, *(["*", *by_name] if by_name else [])]
    return _compiled(cls, "".join(f", {each}" for each in parameters), lines, known)


def _frozen_init_of(cls: type) -> Callable[..., Any]:
    return _init_of(cls, frozen=True)


def _eq_of(cls: type) -> Callable[..., Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    if sys.version_info < (3, 13):
        equal = f"{_tuple('self', names)} == {_tuple('other', names)}"
    else:  # since then a field that differs from itself, as NaN does, makes two objects differ
        equal = f"self is other or ({' and '.join(f'self.{name} == other.{name}' for name in names) or 'True'})"
    return _compiled(cls, ", other", [f"return {equal} if other.__class__ is self.__class__ else NotImplemented"], {})


def _hash_of(cls: type) -> Callable[..., Any]:
    used = [field for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)]
    return _compiled(cls, "", [f"return hash({_tuple('self', [field.name for field in used])})"], {})


def _repr_of(cls: type) -> Callable[..., Any]:
    shown = ", ".join(f"{field.name}={{self.{field.name}!r}}" for field in dataclasses.fields(cls) if field.repr)
    method = _compiled(cls, "", [f"return self.__class__.__qualname__ + f'({shown})'"], {})
    return reprlib.recursive_repr()(method)


def _tuple(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"
