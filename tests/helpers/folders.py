"""Folders for models that several tests share; they go with the process that made them."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def _folder_of(pid: int) -> str:
    made = tempfile.mkdtemp(prefix="tahr-tests-")

    def remove() -> None:
        if os.getpid() == pid:  # a child that was forked leaves it to its parent
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


def new_folder(name: str) -> Path:
    """An empty folder."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_folder_of(os.getpid())))
