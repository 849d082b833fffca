"""Compiles the C programs, when they are not there or older than what they are made of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


class BuildError(Exception):
    """A program cannot be compiled. The message is one line."""


def build(name: str, folder: Path) -> Path:
    """The program of the C files in the folder ``name`` here; it is in ``folder`` then. Raises BuildError."""
    files = sorted((SOURCES / name).glob("*.[ch]"))
    program = folder / name
    if program.exists() and program.stat().st_mtime >= max(file.stat().st_mtime for file in files):
        return program
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("there is no gcc on PATH: the stub engines and the load generator are C programs")
    folder.mkdir(parents=True, exist_ok=True)
    sources = [str(file) for file in files if file.suffix == ".c"]
    new = program.with_suffix(".new")
    done = subprocess.run([compiler, *FLAGS, "-o", str(new), *sources, "-lm"], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{name} does not compile: {done.stderr.strip().splitlines()[0]}")
    return new.replace(program)
