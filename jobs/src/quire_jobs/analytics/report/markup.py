"""Builds HTML and SVG safely: every value is escaped unless this module built it. Pure.

Producers choose the names of topics, keys, cursors and fields, so these reach a page only through `tag`.
"""

import html
import unicodedata
from typing import TypeAlias

NAME_CHARACTERS_MAX = 120
"""Maximum length of a displayed name; longer ones lose their middle."""
_SAME_FOR_ALL = "persistent://"
"""Prefix of all analysed topics, omitted because names are easier to distinguish without it."""


class Markup(str):
    """Text that is already HTML or SVG. Made by `tag` and `join`, never from outside data."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | float | None"
NOTHING = Markup("")
_VOID = frozenset({"meta", "br", "hr", "col"})


def text(value: object) -> Markup:
    """Return the value as text of a page: escaped, with control characters made visible."""
    return Markup(html.escape(visible(str(value)), quote=True))


def visible(value: str) -> str:
    """Return control and formatting characters (including those that change the writing direction) as `\\u{202e}`."""
    if value.isprintable():
        return value
    return "".join(
        letter if letter == "\n" or unicodedata.category(letter)[0] != "C" else f"\\u{{{ord(letter):x}}}"
        for letter in value
    )


def shortened(name: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a long name without its middle, since both ends distinguish topics. Topics are shown without their
    domain."""
    name = visible(name.replace(_SAME_FOR_ALL, ""))
    if len(name) <= characters_max:
        return name
    head = (characters_max - 1) // 2
    return f"{name[:head]}…{name[len(name) - (characters_max - 1 - head) :]}"


def tag(element: str, /, *children: Child, **attributes: str | int | float | None) -> Markup:
    """Return an element. `class_` and `data_x` become the attributes `class` and `data-x`; None omits an attribute."""
    pieces = [f"<{element}"]
    for key, value in attributes.items():
        if value is not None:
            shown = _number(value) if isinstance(value, float) else str(value)
            pieces.append(f' {key.rstrip("_").replace("_", "-")}="{text(shown)}"')
    pieces.append(">")
    if element in _VOID:
        return Markup("".join(pieces))
    return Markup("".join(pieces) + join(*children) + f"</{element}>")


def join(*children: Child) -> Markup:
    """Return the children concatenated; None is omitted."""
    return Markup(
        "".join(child if isinstance(child, Markup) else text(child) for child in children if child is not None)
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
