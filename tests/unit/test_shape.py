"""The size limits of our style, as a test: files, functions, broad excepts, annotated functions, docstrings."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_CODE_LINES_MAX = 70
BROAD_EXCEPTS_PER_1000_LINES_MAX = 1.0
FORBIDDEN_NAME_PARTS = {"utils", "util", "common", "helpers", "helper", "manager", "impl"}

PRODUCT = sorted(
    path
    for member in ("bookie", "broker", "operator", "jobs")
    for path in (ROOT / member / "src").rglob("*.py")
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
)
OTHERS = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    quiet = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


@pytest.mark.parametrize("path", PRODUCT + OTHERS, ids=_name)
def test_a_file_has_one_room(path: Path) -> None:
    assert path.read_text().count("\n") <= FILE_LINES_MAX, "a second room hides in here: split it"


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_functions_stay_short_and_modules_say_what_they_own(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module starts with what it owns and what it must never do"
    lines = _code_lines(text, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = sum(line in lines for line in range(node.lineno, (node.end_lineno or 0) + 1))
            assert size <= FUNCTION_CODE_LINES_MAX, f"{node.name} has {size} code lines"


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_names_say_what_a_thing_is(path: Path) -> None:
    assert not FORBIDDEN_NAME_PARTS & set(path.stem.split("_"))


def test_broad_excepts_are_rare() -> None:
    broad = lines = 0
    for path in PRODUCT:
        text = path.read_text()
        tree = ast.parse(text)
        lines += len(_code_lines(text, tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                broad += any(c is None or getattr(c, "id", "") in ("Exception", "BaseException") for c in caught)
    assert broad <= max(3, lines / 1000 * BROAD_EXCEPTS_PER_1000_LINES_MAX), f"{broad} in {lines} lines"


def test_public_names_have_docstrings() -> None:
    public = documented = 0
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
                "_"
            ):
                public += 1
                documented += ast.get_docstring(node) is not None
    assert documented >= 0.8 * public, f"{documented} of {public}"
