"""Runs in the build stage of an image: installs distributions of ours into a virtual environment, in two steps.

`install.py libraries FOLDER...` installs what they depend on, at the versions in constraints.txt; only it talks to the
package index, and its layer is kept as long as no dependency changes. `install.py code FOLDER...` installs them
themselves and compiles everything: the root file system of a container is read-only, so Python could not do it later.
"""

import compileall
import py_compile
import subprocess
import sys
import tomllib
from pathlib import Path

TARGET = Path("/opt/quire")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def pip_install(*arguments: str) -> None:
    """pip of the build stage, working on the environment, which has none of its own."""
    python = str(TARGET / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-cache-dir", "--no-compile", "--quiet"]
    subprocess.run([*pip, *arguments], check=True)


def libraries(folders: list[Path]) -> None:
    """Third-party distributions, before any code of ours is there."""
    wanted: list[str] = []
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        wanted += [line for line in project["dependencies"] if not line.startswith("quire-")]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(TARGET)], check=True)
    # Spark is published as sources alone, which are Python and jars: nothing of it is compiled.
    pip_install("--only-binary", ":all:", "--no-binary", "pyspark", "--constraint", str(CONSTRAINTS), *wanted)


def code(folders: list[Path]) -> None:
    """Our distributions, with the native module where it was built, and all bytecode."""
    pip_install("--no-deps", *map(str, folders))
    installed = next((TARGET / "lib").glob("python3*/site-packages"))
    native = Path("/native/release/lib_native.so")
    if native.exists():
        (installed / "quire_bookie" / "bulk" / "_native.abi3.so").write_bytes(native.read_bytes())
    # By content and never looked at again: time stamps of copied files are no matter to a start.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(str(installed), quiet=1, force=True, invalidation_mode=mode):
        sys.exit("not everything could be compiled")


if __name__ == "__main__":
    {"libraries": libraries, "code": code}[sys.argv[1]]([Path(name) for name in sys.argv[2:]])
