"""Prepares Spark's jars in the build stage of `quire-jobs`.

Adds the jars for object stores, whose version must match Spark's Hadoop. Removes jars that neither our jobs nor
programs that read topics with Spark SQL or Structured Streaming use, and native libraries of other platforms.
"""

import re
import shutil
import sys
import zipfile
from pathlib import Path

UNUSED = (
    # MLlib and GraphX.
    *("spark-mllib*", "spark-graphx_*", "breeze*", "spire*", "cats-kernel_*", "algebra_*"),
    *("lapack-*", "blas-*", "arpack*", "JTransforms-*", "JLargeArrays-*", "pmml-model-*"),
    # Hive with its metastore; hive-storage-api stays, for ORC.
    *("spark-hive*", "hive-exec-*", "hive-metastore-*", "hive-cli-*", "hive-beeline-*", "hive-jdbc-*", "hive-serde-*"),
    *("hive-shims-*", "hive-service-rpc-*", "hive-common-*", "derby*", "datanucleus-*", "HikariCP-*", "*jdo-*"),
    # Servers of Spark Connect, shells, YARN; other operating systems.
    *("spark-connect_*", "spark-repl_*", "spark-yarn_*"),
    *("*-osx-*", "*-windows-*", "netty-transport-classes-kqueue-*"),
)
"""Names of jars without their suffix."""
FOLDERS_UNUSED = ("examples", "data", "jars/connect-repl")
NATIVE = (".so", ".dll", ".jnilib", ".dylib", ".a")
FOREIGN = re.compile(
    r"osx|darwin|mac/|win64|(?:^|/)win(?:dows)?/|freebsd|aix|sunos"  # operating systems
    r"|ppc|s390x|riscv64|mips64|loongarch64|linux32|i386|/x86/|/arm|android|musl"  # processors, and another libc
)


def version_of(folder: Path, artifact: str) -> str:
    """Return the version of the only jar of an artifact."""
    found = [path.stem.removeprefix(f"{artifact}-") for path in folder.glob(f"{artifact}-[0-9]*.jar")]
    if len(found) != 1:
        sys.exit(f"{folder}: expected one {artifact}, found {found}")
    return found[0]


def is_foreign(name: str) -> bool:
    """Return whether a file is a native library of another operating system or processor."""
    return name.endswith(NATIVE) and FOREIGN.search(name.lower()) is not None


def rewrite(jar: Path) -> None:
    """Remove foreign native libraries from a jar; one without any is not changed."""
    with zipfile.ZipFile(jar) as old:
        entries = old.infolist()
        if not any(is_foreign(entry.filename) for entry in entries):
            return
        smaller = jar.with_suffix(".new")
        with zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in entries:
                if not is_foreign(entry.filename):
                    new.writestr(entry, old.read(entry))
    smaller.replace(jar)


def prepare(spark: Path, more: Path) -> None:
    """Prepare the jars. `spark`: the folder of pyspark; `more`: jars to add."""
    jars = spark / "jars"
    ours, hadoop = version_of(more, "hadoop-aws"), version_of(jars, "hadoop-client-api")
    if ours != hadoop:
        sys.exit(f"images/jobs/jars.xml has hadoop-aws {ours}, but Spark has Hadoop {hadoop}: use that version there")
    for pattern in UNUSED:
        for path in jars.glob(f"{pattern}.jar"):
            path.unlink()
    for name in FOLDERS_UNUSED:
        shutil.rmtree(spark / name, ignore_errors=True)
    for path in sorted(jars.glob("*.jar")):
        rewrite(path)
    for path in sorted(more.glob("*.jar")):
        shutil.copyfile(path, jars / path.name)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
