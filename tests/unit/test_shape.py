"""The limits of our style, one test for each rule: sizes, names, docstrings, broad excepts, import cycles.

A failure lists every place that breaks the rule.
"""

import ast
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_CODE_LINES_MAX = 70
BROAD_EXCEPTS_PER_1000_LINES_MAX = 1.0
DOCUMENTED_MIN = 0.8
MAY_SLEEP = {
    "tests/support/polling.py": "polls for all the others",
    "tests/support/hostile_peers.py": "samples the memory of a process",
    "tests/integration/test_hostile_peers.py": "samples the memory of a process",
    "tests/damage/power.py": "cuts the power after a drawn time; a full queue of the stock client has no event",
    "tests/compat/test_pulsar_client.py": "gives each message its own publish time",
    "tests/compat/test_pulsar_client_secured.py": "waits for tokens to expire and for files to be read again",
    "tests/integration/jobs/spark_processes.py": "an end of the driver ends the wait without a failure",
    "tests/integration/jobs/test_source_stream.py": "an end of the driver ends the wait without a failure",
    "tests/integration/jobs/test_tables.py": "an end of the driver ends the wait without a failure",
    "tests/e2e/kube.py": "polls a cluster for all the other end-to-end tests",
    "tests/e2e/conftest.py": "gives up a namespace without a failure",
    "tests/e2e/programs/load.py": "a program of its own: paces messages and tries again",
    "tests/e2e/test_chaos.py": "draws the time between faults",
    "tests/e2e/test_machines.py": "keeps etcd away for a time",
    "tests/e2e/test_monitoring.py": "stops a bookie for seconds",
    "tests/e2e/test_pods_and_operator.py": "watches that nothing changes for a time",
    "tests/e2e/test_resources.py": "watches that nothing changes for a time",
}
"""Test modules that call `time.sleep`, with the reason. Others use `tests.support.polling`, events or virtual time."""
FORBIDDEN_NAME_PARTS = {"utils", "util", "common", "helpers", "helper", "manager", "impl"}
MEMBERS = ("bookie", "broker", "operator", "jobs")
Function = ast.FunctionDef | ast.AsyncFunctionDef

PRODUCT = sorted(
    path
    for member in MEMBERS
    for path in (ROOT / member / "src").rglob("*.py")
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
)
OTHERS = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


@dataclass(frozen=True, slots=True)
class Source:
    """The facts of one file of the product. Its syntax tree, of which all files together take 170 MB, is not kept."""

    name: str
    is_documented: bool
    code_lines: int
    """Number of the lines that hold more than a comment or a docstring."""
    functions: dict[str, int]
    """Code lines of each function and method, by place and name."""
    broad_excepts: tuple[str, ...]
    """Places."""
    public_names: dict[str, bool]
    """Whether each public class, function and method has a docstring, by place and name."""


def _code_lines(text: str, nodes: list[ast.AST]) -> set[int]:
    """Return the numbers of the lines that hold more than a comment or a docstring. The tokenizer takes much longer."""
    lines = {
        number for number, line in enumerate(text.split("\n"), 1) if line.strip() and not line.lstrip().startswith("#")
    }
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or getattr(each, "id", "") in ("Exception", "BaseException") for each in caught)


def _read(path: Path) -> Source:
    name, text = str(path.relative_to(ROOT)), path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    lines = _code_lines(text, nodes)
    named = [node for node in nodes if isinstance(node, ast.ClassDef | Function)]
    return Source(
        name,
        is_documented=bool(ast.get_docstring(tree)),
        code_lines=len(lines),
        functions={
            f"{name}:{node.lineno} {node.name}": sum(
                number in lines for number in range(node.lineno, (node.end_lineno or 0) + 1)
            )
            for node in named
            if isinstance(node, Function)
        },
        broad_excepts=tuple(
            f"{name}:{node.lineno}" for node in nodes if isinstance(node, ast.ExceptHandler) and _is_broad(node)
        ),
        public_names={
            f"{name}:{node.lineno} {node.name}": ast.get_docstring(node) is not None
            for node in named
            if not node.name.startswith("_")
        },
    )


pytestmark = pytest.mark.xdist_group("shape")
"""One process parses all sources, for all tests here."""


@cache
def sources() -> tuple[Source, ...]:
    """Parse each file of the product once."""
    return tuple(map(_read, PRODUCT))


def test_files_stay_short() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in PRODUCT + OTHERS}
    assert not {name: count for name, count in lines.items() if count > FILE_LINES_MAX}


def test_functions_stay_short() -> None:
    sizes = {place: size for source in sources() for place, size in source.functions.items()}
    assert not {place: size for place, size in sizes.items() if size > FUNCTION_CODE_LINES_MAX}


def test_each_module_states_its_responsibility() -> None:
    assert not [source.name for source in sources() if not source.is_documented]


def test_no_module_name_is_a_catch_all() -> None:
    assert not [path for path in PRODUCT if FORBIDDEN_NAME_PARTS & set(path.stem.split("_"))]


def test_broad_excepts_are_rare() -> None:
    broad = [place for source in sources() for place in source.broad_excepts]
    lines = sum(source.code_lines for source in sources())
    assert len(broad) <= lines / 1000 * BROAD_EXCEPTS_PER_1000_LINES_MAX, broad


def test_public_names_have_docstrings() -> None:
    documented = [is_documented for source in sources() for is_documented in source.public_names.values()]
    assert sum(documented) >= DOCUMENTED_MIN * len(documented), f"{sum(documented)} of {len(documented)}"


def test_tests_sleep_only_where_a_reason_is_given() -> None:
    sleepers = {str(path.relative_to(ROOT)) for path in OTHERS if "time.sleep(" in path.read_text()}
    sleepers -= {name for name in sleepers if name.startswith("benchmarks/") or name == "tests/unit/test_shape.py"}
    assert sleepers == MAY_SLEEP.keys()


@pytest.mark.parametrize("member", MEMBERS)
def test_no_modules_or_folders_import_each_other_in_a_circle(member: str) -> None:
    graph = grimp.build_graph(f"quire_{member}", cache_dir=None)
    for package in sorted(module for module in graph.modules if graph.find_children(module)):
        try:
            TopologicalSorter(_sibling_imports(graph, package)).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(error.args[1]))


def _sibling_imports(graph: grimp.ImportGraph, package: str) -> dict[str, set[str]]:
    """Return which children of a package, with everything below them, import which others."""
    depth = package.count(".") + 2
    imports: dict[str, set[str]] = {child: set() for child in graph.find_children(package)}
    for module in graph.find_descendants(package):
        child = ".".join(module.split(".")[:depth])
        for imported in graph.find_modules_directly_imported_by(module):
            other = ".".join(imported.split(".")[:depth])
            if other in imports and other != child:
                imports[child].add(other)
    return imports
