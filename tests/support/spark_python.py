"""The Python that Spark starts in tests: this one, with pyspark from where it is installed.

Spark puts its own pyspark.zip in front, which is compiled at each start: 1.9 s of CPU instead of 0.5, and Spark waits
ten seconds for a new Python, whatever else the machine does.
"""

import sys
from pathlib import Path


def spark_python(folder: Path) -> str:
    """For `PYSPARK_PYTHON`: a script in `folder`."""
    script = folder / "spark-python"
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)
