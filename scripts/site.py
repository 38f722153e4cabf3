"""The command `make site`: the documentation as a web site in dist/site, which needs no other server at run time.

Copies the Markdown files, with the files that they link to, and lets MkDocs build them; a link to a missing page or
heading fails the build. `ARGS=--serve` shows the site and follows changes. Exit codes: 0 done; 1 the build failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from scripts.tools import uv

ROOT = Path(__file__).resolve().parents[1]
WORK, TARGET = ROOT / "dist" / "site-source", ROOT / "dist" / "site"
MATERIAL = "mkdocs-material==9.7.*"
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "operator/README.md",
    "tests/compat/upstream/README.md",
    "tests/security/README.md",
)
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
NAVIGATION: dict[str, tuple[str, ...]] = {
    "Use": (
        "README.md",
        "docs/tutorial.md",
        "docs/guides/*.md",
        "docs/faq.md",
        "docs/comparison.md",
        "docs/migration.md",
        "docs/upgrade.md",
        "docs/cli.md",
        "docs/client.md",
        "docs/websocket.md",
        "docs/spark.md",
        "docs/analytics.md",
    ),
    "Operate": (
        "docs/configuration.md",
        "docs/bookie.md",
        "docs/brokers.md",
        "docs/proxy.md",
        "docs/console.md",
        "docs/tracing.md",
        "docs/metadata.md",
        "docs/replication.md",
        "docs/offload.md",
        "docs/jobs.md",
        "docs/security.md",
        "docs/limits.md",
    ),
    "Reference": ("docs/reference/*.md",),
    "Kubernetes": ("docs/kubernetes/*.md", "operator/README.md"),
    "Trust": ("docs/durability.md", "docs/protocol.md", "docs/reliability.md", "docs/benchmarks.md"),
    "Contribute": ("*.md", "docs/glossary.md", "docs/*.md", "tests/*/**/README.md"),
    "Decisions": ("docs/decisions/*.md",),
}
"""Titles of the navigation, and the pages below them, in order; a page stands where it is named first."""


def main(words: list[str] | None = None) -> int:
    """Build or serve the site; return the exit code."""
    parser = argparse.ArgumentParser(prog="make site", description="Build the documentation as a web site.")
    parser.add_argument("--serve", action="store_true", help="show it on a local port and follow changes")
    given = parser.parse_args(words)
    collect(WORK / "pages")
    if not build(WORK, serve=given.serve):
        return 1
    if not given.serve:
        print(f"the site is in {TARGET}: open index.html, or copy the folder to any web server")
    return 0


def build(work: Path, *, serve: bool = False) -> bool:
    """Let MkDocs build or serve the pages of a folder; return whether it succeeded. It prints the errors."""
    (work / "mkdocs.yml").write_text(yaml.safe_dump(configuration(work / "pages"), sort_keys=False))
    action = ["serve"] if serve else ["build", "--strict"]
    command = [uv(), "run", "--no-project", "--with", MATERIAL, "mkdocs", *action, "-f", str(work / "mkdocs.yml")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "true"}  # this is MkDocs 1
    return subprocess.run(command, env=quiet, check=False).returncode == 0


def collect(target: Path) -> None:
    """Copy every page and what pages link to, at the same places; a link to a folder becomes one to its list."""
    shutil.rmtree(target, ignore_errors=True)
    pages = {ROOT / name for name in PAGES} | set((ROOT / "docs").rglob("*.md"))
    for page in sorted(pages):
        text = page.read_text()
        for link in {found[1] for found in LINK.finditer(text)}:
            linked = (page.parent / link).resolve()
            if linked.is_dir():
                text = re.sub(rf"\]\({re.escape(link)}\)", f"]({link.rstrip('/')}/{_list_of(linked, target)})", text)
            elif linked.suffix != ".md":
                _copy(linked, target)
        _write(page, target, text)


def configuration(pages: Path) -> dict[str, Any]:
    """Return the configuration of MkDocs."""
    taken: set[str] = set()
    navigation: list[dict[str, list[str]]] = []
    for title, patterns in NAVIGATION.items():
        found = [
            path for pattern in patterns for path in sorted(str(one.relative_to(pages)) for one in pages.glob(pattern))
        ]
        navigation.append({title: [path for path in dict.fromkeys(found) if path not in taken]})
        taken.update(found)
    return {
        "site_name": "Quire",
        "docs_dir": "pages",
        "site_dir": str(pages.parent.parent / "site"),
        "use_directory_urls": False,  # pages also open from a folder, without a server
        "nav": navigation,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.tabs", "navigation.top", "content.code.copy", "search.highlight"],
            "palette": [
                {"media": f"(prefers-color-scheme: {scheme})", "scheme": name, "primary": "teal"}
                for scheme, name in (("light", "default"), ("dark", "slate"))
            ],
        },
        "plugins": ["search"],
        "markdown_extensions": ["tables", "attr_list", "pymdownx.superfences", {"toc": {"permalink": True}}],
        "validation": {
            "nav": {"omitted_files": "ignore"},  # the lists of folders
            "links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"},
        },
    }


def _list_of(folder: Path, target: Path) -> str:
    """Return the name of the page of a folder; write one that lists its files if it has none."""
    if (folder / "README.md").exists():
        return "README.md"
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.glob("*.md")) or sorted(one for one in folder.iterdir() if one.is_file()):
        title = path.read_text().partition("\n")[0].removeprefix("# ") if path.suffix == ".md" else path.name
        lines.append(f"* [{title}]({path.name})")
        if path.suffix != ".md":
            _copy(path, target)
    _write(folder / "list.md", target, "\n".join(lines) + "\n")
    return "list.md"


def _copy(path: Path, target: Path) -> None:
    _write(path, target, path.read_text())


def _write(path: Path, target: Path, text: str) -> None:
    to = target / path.relative_to(ROOT)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
