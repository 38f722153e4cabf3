"""Decides whether a command of pulsar-admin had the same effect on two clusters. Pure.

Ids of ledgers, times, hosts and ports differ from cluster to cluster: they are replaced before outputs are compared.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Verdict(StrEnum):
    """What a row of the table says."""

    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    REFUSED = "refused"
    """Ours answers that it does not serve this, and why."""
    NEITHER = "fails on stock"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of one command."""

    code: int
    out: str
    err: str

    @property
    def fine(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0


_VARYING: Final = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|[+-][\d:]+)?"), "<time>"),
    (re.compile(r"\b(pulsar(\+ssl)?|https?)://[\w.-]+:\d+"), r"\1://<host>"),
    (re.compile(r"\b(localhost|127\.0\.0\.1):\d+"), "<host>"),
    (re.compile(r"\b\d+:(-?\d+)(:-?\d+)*\b"), r"<ledger>:\1"),
    # By a number, so that JSON stays JSON, and a number does not equal a text.
    (re.compile(r'("?(ledgerId|timestamp|version|publishTime|ledger)"?\s*[:=]\s*"?)\d+'), r"\g<1>0"),
    (re.compile(r"\b1[67]\d{11}\b"), "0"),
)
_LIST: Final = re.compile(r"\[([^\[\]]*)\]")
"""A collection as Java prints it; the order of a set there differs from run to run."""
_NO_ROUTE: Final = re.compile(
    r"HTTP (404|405)\b.*(Not Found|Method Not Allowed)|Reason: (HTTP 404 )?Not Found\s*$", re.S
)
_UNSERVED: Final = re.compile(r"HTTP 501|not supported|does not serve|not served", re.I)


def settled(text: str) -> str:
    """Return an output without what differs between any two clusters; lists, and the lines of a text, are sorted."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    found = value_of(text)
    if found is not None:
        return json.dumps(_sorted(found), sort_keys=True)
    text = _LIST.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", text)
    return "\n".join(sorted(line.strip() for line in text.strip().splitlines() if line.strip()))


def value_of(text: str) -> Any:
    """Return the JSON of an output; None if it is something else."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return {key: _sorted(item) for key, item in value.items()} if isinstance(value, dict) else value


_BUNDLE: Final = re.compile(r"[^./]+/[^/]+/0x[0-9a-f]{8}_0x[0-9a-f]{8}")


def shape(value: Any, path: str = "") -> dict[str, str]:
    """Return the type at each path of a JSON value. Of a list the first item counts, of bundles all together."""
    if isinstance(value, dict):
        paths = {key: f"{path}.{_BUNDLE.sub('<bundle>', key)}" for key in value}
        return {name: kind for key, item in value.items() for name, kind in shape(item, paths[key]).items()}
    if isinstance(value, list):
        return shape(value[0], f"{path}[]") if value else {path: "[]"}
    if isinstance(value, bool):
        return {path: "boolean"}
    return {path: "number" if isinstance(value, int | float) else "null" if value is None else "text"}


def difference(stock: str, ours: str, *, by_shape: bool) -> str:
    """Return how our output differs from stock's; empty if it does not."""
    if not by_shape:
        one, other = settled(stock), settled(ours)
        return "" if one == other else f"stock prints `{_short(one)}`, ours `{_short(other)}`"
    one_value, other_value = value_of(stock), value_of(ours)
    if one_value is None or other_value is None:
        return "" if bool(stock.strip()) == bool(ours.strip()) else "one of them prints nothing"
    want, have = shape(one_value), shape(other_value)
    lacking = [path for path in want if path not in have and want[path] not in ("[]", "null")]
    wrong = [
        path for path, kind in want.items() if {kind, have.get(path, kind)} in ({"text", "number"}, {"boolean", "text"})
    ]
    parts = [f"lacks {_names(lacking)}"] if lacking else []
    return "; ".join(parts + ([f"another type of {_names(wrong)}"] if wrong else []))


def _names(paths: list[str]) -> str:
    shown = ", ".join(f"`{path.lstrip('.')}`" for path in paths[:4])
    return f"{shown} and {len(paths) - 4} more" if len(paths) > 4 else shown


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return line if len(line) <= 90 else f"{line[:87]}..."


def reason_of(ran: Ran) -> str:
    """Return the reason in an error output, in one line."""
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Reason:")] or [
        line for line in lines if not line.startswith("at ")
    ]
    return _short(told[-1].removeprefix("Reason:").strip()) if told else "no output"


def judge(stock: Ran, ours: Ran, *, how: str) -> tuple[Verdict, str]:
    """Return the verdict on one command, and why. `how`: see `commands`."""
    if not stock.fine:
        return Verdict.NEITHER, f"stock: {reason_of(stock)}"
    if not ours.fine:
        text = ours.err + ours.out
        if _UNSERVED.search(text):
            return Verdict.REFUSED, reason_of(ours)
        return (Verdict.MISSING if _NO_ROUTE.search(text) else Verdict.DIFFERENT), reason_of(ours)
    flaw = "" if how == "!" else difference(stock.out, ours.out, by_shape=how == "~")
    return (Verdict.DIFFERENT, flaw) if flaw else (Verdict.SAME, "")
