"""What the build of `quire-jobs` does with Spark's jars."""

import importlib.util
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

IMAGE = Path(__file__).resolve().parents[3] / "images" / "jobs"


@pytest.fixture(scope="module")
def spark_jars() -> Any:
    spec = importlib.util.spec_from_file_location("spark_jars", IMAGE / "spark_jars.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jar(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, name)


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "more").mkdir()
    jar(tmp_path / "jars" / "hadoop-client-api-3.5.0.jar", "A.class")
    jar(tmp_path / "more" / "hadoop-aws-3.5.0.jar", "B.class")
    return tmp_path


def test_jars_are_added_and_what_nobody_uses_goes(spark_jars: Any, spark: Path) -> None:
    for name in ("spark-sql_2.13-4.3.0", "spark-mllib_2.13-4.3.0", "hive-storage-api-2.8.1", "hive-exec-2.3.10-core"):
        jar(spark / "jars" / f"{name}.jar", "A.class")
    spark_jars.prepare(spark, spark / "more")
    left = {path.name for path in (spark / "jars").iterdir()}
    assert left == {
        *("hadoop-client-api-3.5.0.jar", "hadoop-aws-3.5.0.jar"),
        *("spark-sql_2.13-4.3.0.jar", "hive-storage-api-2.8.1.jar"),
    }


def test_native_libraries_of_this_system_stay(spark_jars: Any, spark: Path) -> None:
    kept = [
        "librocksdbjni-linux64.so",
        "librocksdbjni-linux-aarch64.so",
        "linux/amd64/libzstd-jni-1.so",
        "org/xerial/snappy/native/Linux/x86_64/libsnappyjava.so",
        "META-INF/native/libnetty_transport_native_epoll_x86_64.so",
        "net/windows/Names.class",
    ]
    gone = [
        "librocksdbjni-osx-arm64.jnilib",
        "librocksdbjni-linux64-musl.so",
        "librocksdbjni-win64.dll",
        "linux/s390x/libzstd-jni-1.so",
        "org/xerial/snappy/native/Windows/x86_64/snappyjava.dll",
        "org/xerial/snappy/native/Linux/armv7/libsnappyjava.so",
    ]
    jar(spark / "jars" / "natives-1.jar", *kept, *gone)
    spark_jars.prepare(spark, spark / "more")
    with zipfile.ZipFile(spark / "jars" / "natives-1.jar") as left:
        assert left.namelist() == kept
        assert left.read(kept[0]).decode() == kept[0]


def test_another_hadoop_than_spark_s_ends_the_build(spark_jars: Any, spark: Path) -> None:
    (spark / "jars" / "hadoop-client-api-3.5.0.jar").rename(spark / "jars" / "hadoop-client-api-3.6.0.jar")
    with pytest.raises(SystemExit, match=r"has hadoop-aws 3\.5\.0, but Spark has Hadoop 3\.6\.0"):
        spark_jars.prepare(spark, spark / "more")


def test_the_jars_are_of_the_hadoop_of_the_spark_that_is_pinned() -> None:
    pyspark = pytest.importorskip("pyspark")
    (api,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    hadoop = api.stem.removeprefix("hadoop-client-api-")
    assert f"<artifactId>hadoop-aws</artifactId>\n      <version>{hadoop}</version>" in (IMAGE / "jars.xml").read_text()
    assert re.search(rf"  hadoop-aws-{re.escape(hadoop)}\.jar$", (IMAGE / "jars.sha256").read_text(), re.MULTILINE)
