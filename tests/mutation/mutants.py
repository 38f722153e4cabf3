"""The mutants of one module: source text with one small fault each."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

COMPARISONS = ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt", "Eq_NotEq", "NotEq_Eq")
BINARY = ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_FloorDiv", "BitOr_BitAnd", "BitAnd_BitOr")
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{each}" for each in (*COMPARISONS, "Is_IsNot", "IsNot_Is")),
    *(f"core/ReplaceBinaryOperator_{each}" for each in BINARY),
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/AddNot",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ExceptionReplacer",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)
"""For each comparison its negation and its other boundary, for each operation one other; more would be redundant."""
DROP = "DropStatement"
NOT_DROPPED = (
    "import ",
    "from ",
    "_log.",
    "log.",
    "assert ",
    "pass",
    "...",
    '"',
    "__slots__",
    "self._stats.",
    "stats.",
)

NOT_MUTATED = ("assert ", "_log.", "log.", "from ", "import ", "self._stats.", "stats.", "raise ")


class DropStatement(Operator):  # type: ignore[misc]
    """Replaces a simple statement with `pass`. cosmic-ray has no such operator, and most rules are one statement."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """See Operator."""
        if node.type == "simple_stmt" and not node.get_code(include_prefix=False).startswith(NOT_DROPPED):
            inside = node.parent
            while inside is not None and inside.type not in ("funcdef", "classdef"):
                inside = inside.parent
            if inside is not None and inside.type == "funcdef" and inside.name.value != "__init__":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """See Operator."""
        prefix = node.get_first_leaf().prefix
        node.children[0] = parso.python.tree.Keyword("pass", node.start_pos, prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        """See Operator."""
        return ()


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault at one location in a module."""

    module: str
    operator: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        """Identifies the mutant among the results of one version of the module."""
        return f"{self.module}:{self.line}:{self.operator.rpartition('/')[2]}:{self.occurrence}"

    def applied(self, source: str) -> tuple[str, str]:
        """Return the source of the mutated module, and the changed line."""
        visitor = MutationVisitor(self.occurrence, _operator(self.operator))
        text = visitor.walk(get_ast(source)).get_code()
        pairs = zip(source.splitlines(), text.splitlines(), strict=False)
        changes = [f"{one.strip()}  ->  {other.strip()}" for one, other in pairs if one != other]
        return text, changes[0] if changes else ""


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of their lines."""
    found, lines, tree = [], source.splitlines(), get_ast(source)
    for name in (*OPERATORS, DROP):
        positions = _Positions(_operator(name))
        positions.walk(tree)
        for occurrence, line in enumerate(positions.lines):
            if not lines[line - 1].strip().startswith(NOT_MUTATED):
                found.append(Mutant(module, name, occurrence, line))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.key))


def drawn(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw `count` of them at random; a larger count includes the mutants of a smaller one."""
    chosen = random.Random(seed).sample(mutants, len(mutants))[:count]
    return sorted(chosen, key=lambda mutant: (mutant.line, mutant.key))


class _Positions(Visitor):  # type: ignore[misc]
    """Collects the positions of an operator, in the order of its occurrences."""

    def __init__(self, operator: Operator) -> None:
        self.lines: list[int] = []
        self._operator = operator

    def visit(self, node: Any) -> Any:
        """See Visitor."""
        self.lines += [start[0] for start, _ in self._operator.mutation_positions(node)]
        return node


def _operator(name: str) -> Operator:
    return DropStatement() if name == DROP else get_operator(name)()
