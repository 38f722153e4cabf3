"""The commands of a block of shell, as words: enough of the shell's grammar for the blocks of the documentation.

Words keep their `$VARIABLES` and `$(commands)`. Comments, redirections, assignments in front of a command and the words
of loops are left out. Pure.
"""

import re
import shlex
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""[ \t]*(?:
        (?P<comment>\#[^\n]*)
      | (?P<redirect>\d?(?:>>|>&|>|<)[ \t]*&?[^\s;|&]+)
      | (?P<end>\n|;|&&|\|\||\||&)
      | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\([^)]*\)|[^\s;&|<>'"\\])+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LOOP = ("do", "then", "else", "exec", "time", "!")
_NOT_COMMANDS = ("for", "done", "fi")


def commands_of(code: str) -> Iterator[list[str]]:
    """Yield the words of each command. ValueError for text that is no shell."""
    code = code.replace("\\\n", " ")
    found: list[str] = []
    at = 0
    while at < len(code):
        token = _TOKEN.match(code, at)
        if token is None:
            if code[at:].isspace():
                break
            raise ValueError(f"no word of a shell: {code[at : at + 40]!r}")
        at = token.end()
        if token["word"]:
            found.append(token["word"])
        elif token["end"]:
            yield from _command(found)
            found = []
    yield from _command(found)


def _command(tokens: list[str]) -> Iterator[list[str]]:
    while tokens and (_ASSIGNMENT.match(tokens[0]) or tokens[0] in _LOOP):
        tokens = tokens[1:]
    if tokens and tokens[0] not in _NOT_COMMANDS:
        yield [_plain(token) for token in tokens]


def _plain(token: str) -> str:
    """Return a word without its quotes."""
    return token if token.startswith("$(") else "".join(shlex.split(token))
