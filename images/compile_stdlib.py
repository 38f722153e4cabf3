"""Compiles Python's standard library in the last stage of an image, if the base image has no bytecode.

The official images have none; every start would compile its imports again, because the file system is read-only.
"""

import compileall
import importlib.util
import os
import py_compile
import re
import sysconfig
from pathlib import Path

if not Path(importlib.util.cache_from_source(os.__file__)).exists():
    compileall.compile_dir(
        sysconfig.get_path("stdlib"),
        quiet=2,
        rx=re.compile(r"/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages|dist-packages)/"),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
