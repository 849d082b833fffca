"""The part of the build that pyproject.toml cannot say: hot modules of the router, compiled by mypyc.

With ``BATON_COMPILE=1`` the modules that pyproject.toml lists become C extensions, which needs a C compiler; without it
the wheel is the same for every Python and machine. docs/hot-path.md says what it brings.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

COMPILES = os.environ.get("BATON_COMPILE") == "1"
OPTIONS = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["baton"]


class Compiled(Distribution):
    """What a package with extensions says of itself, before they are known."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel is of one Python and machine."""
        return COMPILES


class CompileModules(build_ext):
    """Has mypyc write the C files. Only here: pip asks what a build needs before mypyc is there."""

    def finalize_options(self) -> None:
        """Name what is to be built."""
        from mypyc.build import mypycify

        # Only to be told types: what the modules import need not be installed. ``make lint`` is what checks them.
        arguments = ["--config-file=", "--ignore-missing-imports", *OPTIONS["compiled"]]
        self.distribution.ext_modules = mypycify(arguments, opt_level="3", debug_level="0")
        super().finalize_options()


if COMPILES:
    setup(distclass=Compiled, cmdclass={"build_ext": CompileModules}, setup_requires=OPTIONS["compiler"])
else:
    setup()
