"""Installs Quire's distributions into a virtual environment in the build stage of an image, in two steps.

`install.py libraries FOLDER...` installs the dependencies at the versions in constraints.txt. Only this step uses the
package index, and its layer is reused as long as no dependency changes. `install.py code FOLDER...` installs the
distributions and compiles everything, because the root file system of a container is read-only.
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
    """Run the build stage's pip on the environment, which has no pip."""
    python = str(TARGET / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-cache-dir", "--no-compile", "--quiet"]
    subprocess.run([*pip, *arguments], check=True)


def libraries(folders: list[Path]) -> None:
    """Create the environment and install third-party distributions."""
    wanted: list[str] = []
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        needed = [*project["dependencies"], *(line for extra in extras for line in extra)]
        wanted += [line for line in needed if not line.startswith("quire-")]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(TARGET)], check=True)
    # Spark is published only as a source distribution of Python files and jars, which needs no compilation.
    pip_install("--only-binary", ":all:", "--no-binary", "pyspark", "--constraint", str(CONSTRAINTS), *wanted)


def code(folders: list[Path]) -> None:
    """Install Quire's distributions, and the native module if it was built; compile all bytecode."""
    pip_install("--no-deps", *map(str, folders))
    installed = next((TARGET / "lib").glob("python3*/site-packages"))
    native = Path("/native/release/lib_native.so")
    if native.exists():
        (installed / "quire_bookie" / "bulk" / "_native.abi3.so").write_bytes(native.read_bytes())
    # Unchecked hashes, so that time stamps of copied files do not invalidate the bytecode at a start.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(str(installed), quiet=1, force=True, invalidation_mode=mode):
        sys.exit("not everything could be compiled")


if __name__ == "__main__":
    {"libraries": libraries, "code": code}[sys.argv[1]]([Path(name) for name in sys.argv[2:]])
