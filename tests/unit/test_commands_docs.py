"""Every command block of the documentation: its commands are parsed by the programs that they name.

A block without a language, of `sh` or of `bash` holds commands; other text names its language. Pages that
tests/integration/test_documentation.py runs are parsed here too. Settings, parameters, paths, resources and names of
Python must exist; whether a command does what the page says is known only of the blocks that tests run.
"""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from quire_bookie.cli.main import build
from tests.support.documented_commands import fault_of, fits_a_resource, systemd
from tests.support.shell_words import commands_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(quire [^`\n]+)`(?!`)")
SHELL = ("", "sh", "bash")
DRAWN = ("text", "mermaid", "json", "lua")


def blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    """The line and the text of each block of a language."""
    found = [(text.count("\n", 0, part.start()) + 1, part) for part in _BLOCK.finditer(text)]
    return [(line, part[3]) for line, part in found if part[2] in languages]


def faults(text: str) -> list[str]:
    """The faults of the commands of a page, each with the line of its block."""
    found = []
    for line, code in blocks(text, *SHELL):
        try:
            found += [f"line {line}: {fault}" for words in commands_of(code) if (fault := fault_of(words))]
        except ValueError as error:
            found.append(f"line {line}: {error}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_commands_of_a_page_are_accepted(page: Path) -> None:
    assert faults(page.read_text()) == []


def test_each_block_has_a_known_language() -> None:
    known = (*SHELL, *DRAWN, "python", "toml", "properties", "yaml", "ini")
    for page in PAGES:
        languages = {part[2] for part in _BLOCK.finditer(page.read_text())}
        assert languages <= set(known), page


def test_settings_of_the_blocks_exist() -> None:
    commands = build()
    known = commands.known_keys()
    for page in PAGES:
        for line, text in blocks(page.read_text(), "toml"):
            values = tomllib.loads(text)
            assert values.keys() - {"project"} <= known, f"{page}:{line}"
        for line, text in blocks(page.read_text(), "properties"):
            keys = {each.partition("=")[0].strip() for each in text.splitlines() if each.strip()}
            assert keys <= known, f"{page}:{line}"


def test_fields_of_resources_exist() -> None:
    for page in PAGES:
        for line, text in blocks(page.read_text(), "yaml"):
            value = yaml.safe_load(text)
            if value.get("apiVersion", "quire.dev").startswith("quire.dev"):
                assert fits_a_resource(value) == [], f"{page}:{line}"


def test_units_of_systemd_start_known_commands() -> None:
    for page in PAGES:
        for _, text in blocks(page.read_text(), "ini"):
            systemd(text)


def test_python_of_the_blocks_compiles_and_finds_our_names() -> None:
    imported = 0
    for page in PAGES:
        for line, text in blocks(page.read_text(), "python"):
            for node in ast.walk(ast.parse(text, f"{page}:{line}")):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("quire_"):
                    module = import_module(str(node.module))
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
                    imported += 1
    assert imported > 8


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("quire topic lists", "No such command"),
        ("quire topic list --everything", "No such option"),
        ("quire bookie start --set journalSizeMB=5", "unknown setting"),
        ("quire jobs run throughput --local topics=a outputs=...", "no parameters"),
        ("quire jobs run throughputs", "unknown kind"),
        ("docker run -p 1:1 quire-broker:0.1.0 standalones", "No such command"),
        ("docker run quire-broker:0.0.1", "the images have the version"),
        ("make everything", "no targets"),
        ("make test ARGS=tests/units", "does not exist"),
        ("curl -X PUT http://localhost:8080/admin/v2/persistents/t/n/topic", "no route"),
        ("curl http://localhost:8080/admin/v2/persistent/t/n/topic/unload", "no route"),
        ("kubectl quire undrained pod", "2"),
        ("kubectl apply -f docs/none.yaml", "does not exist"),
        ("kubectl get bookieses", "unknown resource"),
        ("""kubectl patch bookie pool --patch '{"spec":{"slowBooky":{}}}'""", "no field of the resource"),
        ("kubectl get ml orders -o jsonpath='{.status.rollouts}'", "no field of the resource"),
        ("helm install quire charts/quire --set operator.replicass=2", "no value operator.replicass"),
        ("kubectl-quires", "the program"),
    ],
)
def test_a_wrong_command_is_found(command: str, fault: str) -> None:
    [found] = faults(f"```\n{command}\n```\n")
    assert fault in found


def test_words_of_a_shell() -> None:
    code = "# all\nA=1 make x | tee \\\n  y >z 2>&1  # why\nfor a in b c; do quire \"$a b\" 'c;d' $(e f); done\n"
    assert list(commands_of(code)) == [["make", "x"], ["tee", "y"], ["quire", "$a b", "c;d", "$(e f)"]]
    with pytest.raises(ValueError, match="no word of a shell"):
        list(commands_of("echo 'open\n"))
