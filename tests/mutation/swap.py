"""Replaces the functions of a loaded module by mutated code, so that no mutant needs a separate start.

The mutated module is executed beside the loaded one, and differing functions, methods and constants replace those of
the loaded one. Runs in a forked process that ends with the mutant: nothing is ever restored.
"""

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


class NotAppliedError(Exception):
    """The mutated module cannot be executed, or has no difference that can be replaced."""


def apply(module: str, source: str) -> None:
    """Let the loaded `module` behave as `source`. NotAppliedError if that is impossible."""
    loaded = importlib.import_module(module)
    beside = types.ModuleType(module)
    beside.__dict__.update({"__file__": loaded.__file__, "__package__": loaded.__package__})
    try:
        exec(compile(source, str(loaded.__file__), "exec"), beside.__dict__)
    except Exception as error:
        raise NotAppliedError(f"{type(error).__name__}: {error}") from error
    if not sum(_replace(vars(loaded), vars(beside), loaded)):
        raise NotAppliedError("no difference can be replaced")


def _replace(old: Any, new: Any, owner: Any) -> Iterator[bool]:
    for name, fresh in list(new.items()):
        known = old.get(name)
        if isinstance(fresh, type) and isinstance(known, type):
            if fresh.__module__ == owner.__name__ or fresh.__module__ == getattr(owner, "__module__", ""):
                yield from _replace(vars(known), vars(fresh), known)
            continue
        for before, after in zip(_functions(known), _functions(fresh), strict=False):
            if _differs(before.__code__, after.__code__):
                before.__code__ = after.__code__
                before.__defaults__, before.__kwdefaults__ = after.__defaults__, after.__kwdefaults__
                yield True
        if isinstance(fresh, int | float | bytes | str | tuple) and known != fresh and not name.startswith("__"):
            yield _set_everywhere(owner, name, known, fresh)


def _functions(value: Any) -> list[types.FunctionType]:
    if isinstance(value, property):
        return [each for each in (value.fget, value.fset) if isinstance(each, types.FunctionType)]
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return [value] if isinstance(value, types.FunctionType) and not value.__code__.co_filename.startswith("<") else []


def _differs(old: types.CodeType, new: types.CodeType) -> bool:
    if old.co_freevars != new.co_freevars:
        raise NotAppliedError("the mutated function closes over other variables")
    if (old.co_code, old.co_names, old.co_varnames) != (new.co_code, new.co_names, new.co_varnames):
        return True
    if len(old.co_consts) != len(new.co_consts):
        return True
    for one, other in zip(old.co_consts, new.co_consts, strict=True):
        if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
            if _differs(one, other):
                return True
        elif one != other or type(one) is not type(other):
            return True
    return False


def _set_everywhere(owner: Any, name: str, known: object, fresh: object) -> bool:
    """Replace a constant, also in modules that imported it by its name."""
    setattr(owner, name, fresh)
    for each in list(sys.modules.values()):
        if getattr(each, "__name__", "").startswith("quire_") and vars(each).get(name) == known and known is not None:
            setattr(each, name, fresh)
    return True
