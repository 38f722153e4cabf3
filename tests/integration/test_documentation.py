"""The commands of README.md, docs/tutorial.md and docs/cli.md, run in order as they stand there.

Each page has a folder and a standalone of its own: the page starts it, or the test does if the page names no terminal
for it. `tests/support/command_blocks.py` describes the comments in the pages.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_blocks import Block, PageShell, blocks_of
from tests.support.ports import free_port_range, free_ports
from tests.support.standalone import QUIRE, environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": (3, 1), "docs/tutorial.md": (21, 0), "docs/cli.md": (9, 6)}
"""Pages, with the number of blocks that run and that do not: leaving one out is a decision."""
NOT_OURS = {".git", "quire-data", "dist"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    """A shell in a folder with links to everything of the repository, and the settings of free ports."""
    folder = tmp_path / "quire"
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name not in NOT_OURS:
            (folder / path.name).symlink_to(path)
    broker, http = free_ports(2)
    variables = environment() | {
        "HOME": str(tmp_path),
        "QUIRE_brokerServicePort": str(broker),
        "QUIRE_webServicePort": str(http),
        "QUIRE_bookiePort": str(free_port_range(3)),
        "QUIRE_diskUsageThreshold": "1",
        "QUIRE_BROKER": f"pulsar://localhost:{broker}",
        "QUIRE_HTTP": f"http://localhost:{http}",
        "PATH": f"{Path(QUIRE).parent}:{environment()['PATH']}",
    }
    found = PageShell(
        folder, variables, {"localhost:6650": f"localhost:{broker}", "localhost:8080": f"localhost:{http}"}
    )
    yield found
    found.close()
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, shell: PageShell) -> None:
    blocks = blocks_of((ROOT / page).read_text())
    ran = [block for block in shell.run(blocks) if block.code and block.reason is None]
    left_out = [block for block in blocks if block.reason is not None]
    assert (len(ran), len(left_out)) == PAGES[page]


def run(shell: PageShell, text: str) -> list[Block]:
    return list(shell.run(blocks_of(text)))


def test_variables_and_the_folder_go_from_block_to_block(shell: PageShell) -> None:
    run(
        shell,
        "```\nmkdir -p a/b\ncd a\nexport X=1\n```\nthen\n```sh\ncd b; echo $X; pwd\n```\n```text\n1\n...a/b\n```\n",
    )


def test_a_command_that_fails_is_named_with_its_line(shell: PageShell) -> None:
    with pytest.raises(AssertionError, match="line 2 ended with 1"):
        run(shell, "#\n```\ntrue\nfalse\ntrue\n```\n")
    with pytest.raises(AssertionError, match="line 1 ended with 1"):
        run(shell, "```python\nraise ValueError\n```\n")


def test_an_output_that_the_page_does_not_show_is_refused(shell: PageShell) -> None:
    with pytest.raises(AssertionError, match="prints other than the page says"):
        run(shell, "```\necho one\n```\nprints\n```text\ntwo\n```\n")


def test_what_runs_in_the_background_is_awaited_and_stopped(shell: PageShell) -> None:
    run(shell, "<!-- background: ready -->\n```\necho ready; exec sleep 1000\n```\n<!-- stop -->\n```\ntrue\n```\n")
    with pytest.raises(AssertionError, match="the process ended with 0: line 2 does not print 'never'"):
        run(shell, "<!-- background: never -->\n```\necho ready\n```\n")


def test_a_block_that_is_left_out_needs_a_reason(shell: PageShell) -> None:
    [left_out] = run(shell, "<!-- not run: it fails -->\n```\nfalse\n```\n```json\n{}\n```\n")
    assert left_out.reason == "it fails"
    with pytest.raises(ValueError, match="line 1: the comment `not run` says nothing"):
        blocks_of("<!-- not run -->\n```\nfalse\n```\n")
    with pytest.raises(ValueError, match="no block behind it"):
        blocks_of("<!-- first: true -->\n")
