"""Builds the wheels of `quire-bookie` with the native module: those of all platforms on one machine.

Zig, a compiler with the C libraries of other systems, is the linker; cargo-zigbuild calls it. Both come from the
package index, at fixed versions. So does abi3audit, which checks that a module uses nothing but Python's stable ABI.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.release.steps import ROOT, output_of, run
from scripts.release.versions import ReleaseError
from scripts.tools import uv

LINKER = ("ziglang==0.17.1", "cargo-zigbuild==0.24.1")
CHECK = "abi3audit==0.0.26"


@dataclass(frozen=True, slots=True)
class Platform:
    """A system and processor. `name`: as in the name of a wheel, with the oldest system that can load the module.

    `target`: Rust's name of it. `c_library`: the version of the C library to link against, as cargo-zigbuild takes it.
    `library`: the file that cargo writes.
    """

    name: str
    target: str
    c_library: str = ""
    library: str = "lib_native.so"


PLATFORMS = (
    Platform("manylinux_2_17_x86_64", "x86_64-unknown-linux-gnu", ".2.17"),
    Platform("manylinux_2_17_aarch64", "aarch64-unknown-linux-gnu", ".2.17"),
    Platform("macosx_11_0_arm64", "aarch64-apple-darwin", library="lib_native.dylib"),
    Platform("macosx_11_0_x86_64", "x86_64-apple-darwin", library="lib_native.dylib"),
)


def chosen(name: str) -> tuple[Platform, ...]:
    """Return the platforms that an argument names: `all`, `here`, or the name of one. ReleaseError if there is none."""
    if name == "all" or not _host():
        return PLATFORMS
    found = tuple(each for each in PLATFORMS if name in (each.name, "here" if each.target == _host() else ""))
    if not found:
        raise ReleaseError(f"--native {name}: use all, here, or one of {', '.join(each.name for each in PLATFORMS)}")
    return found


def build_native_wheels(folder: Path, platforms: Sequence[Platform]) -> list[str]:
    """Build the wheels of these platforms into the folder; return, for each that was left out, why."""
    if not _host():
        return [f"no wheel for {each.name}: cargo is not installed; install Rust with rustup" for each in platforms]
    left_out = []
    for platform in platforms:
        if _has_standard_library(platform):
            _build_wheel(folder, platform)
        else:
            left_out.append(
                f"no wheel for {platform.name}: Rust has no standard library for it here; "
                f"run `rustup target add {platform.target}`"
            )
    return left_out


def _host() -> str:
    """Return Rust's name of this machine; empty without Rust."""
    if shutil.which("cargo") is None or shutil.which("rustc") is None:
        return ""
    lines = output_of("rustc", "-vV").splitlines()
    return next(line.removeprefix("host: ") for line in lines if line.startswith("host: "))


def _has_standard_library(platform: Platform) -> bool:
    folder = output_of("rustc", "--print", "target-libdir", "--target", platform.target).strip()
    return any(Path(folder).glob("libstd-*.rlib"))


def _build_wheel(folder: Path, platform: Platform) -> None:
    """Compile the module, put it into a wheel, and check what it needs of Python.

    Compiled crates stay in the user's cache folder. Checkouts share it, so build and copy need a lock.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quire" / "native"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".quire-lock").open("w") as lock, tempfile.TemporaryDirectory() as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ("cargo", "zigbuild", "--quiet", "--release", "--locked", "--manifest-path", "bookie/native/Cargo.toml")
        target = ("--target", platform.target + platform.c_library)
        run(*_with(*LINKER), *words, *target, CARGO_TARGET_DIR=str(cache))
        library = Path(shutil.copy2(cache / platform.target / "release" / platform.library, scratch))
        run(
            *(uv(), "build", "--quiet", "--wheel", "--out-dir", folder, ROOT / "bookie"),
            QUIRE_NATIVE_LIBRARY=str(library),
            QUIRE_NATIVE_PLATFORM=platform.name,
        )
    (wheel,) = folder.glob(f"*-{platform.name}.whl")
    run(*_with(CHECK), "abi3audit", "--strict", wheel)


def _with(*tools: str) -> tuple[str, ...]:
    """Return the beginning of a command that uses tools from the package index."""
    return (uv(), "run", "--no-project", *(f"--with={tool}" for tool in tools), "--")
