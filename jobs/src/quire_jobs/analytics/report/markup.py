"""HTML and SVG as text that cannot be broken out of: every value is escaped unless it was built here. Pure.

Names of topics, keys, cursors and fields are chosen by whoever produces: they reach a page through `tag` only.
"""

import html
import unicodedata
from typing import TypeAlias

NAME_CHARACTERS_MAX = 120
"""Of a name as it is shown; longer ones lose their middle."""
_SAME_FOR_ALL = "persistent://"
"""All topics that are analysed begin with it: without it the names are easier to tell apart."""


class Markup(str):
    """Text that is HTML or SVG already. Made by `tag` and `join`, never from outside data."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | float | None"
NOTHING = Markup("")
_VOID = frozenset({"meta", "br", "hr", "col"})


def text(value: object) -> Markup:
    """The value as text of a page: escaped, and what would act on the text around it made visible."""
    return Markup(html.escape(visible(str(value)), quote=True))


def visible(value: str) -> str:
    """Control and formatting characters (also those that turn the direction of writing) as `\\u{202e}`."""
    if value.isprintable():
        return value
    return "".join(
        letter if letter == "\n" or unicodedata.category(letter)[0] != "C" else f"\\u{{{ord(letter):x}}}"
        for letter in value
    )


def shortened(name: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """A long name without its middle: both ends tell topics apart. Topics are shown without their domain."""
    name = visible(name.replace(_SAME_FOR_ALL, ""))
    if len(name) <= characters_max:
        return name
    head = (characters_max - 1) // 2
    return f"{name[:head]}…{name[len(name) - (characters_max - 1 - head) :]}"


def tag(element: str, /, *children: Child, **attributes: str | int | float | None) -> Markup:
    """An element. `class_` and `data_x` are the attributes `class` and `data-x`; None leaves one out."""
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
    """The children one after the other; None is nothing."""
    return Markup(
        "".join(child if isinstance(child, Markup) else text(child) for child in children if child is not None)
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
