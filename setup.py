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

ASKED = os.environ.get("BATON_COMPILE", "0")
if ASKED not in ("0", "1"):
    raise SystemExit(f"BATON_COMPILE is 0 or 1, not {ASKED!r}")
COMPILES = ASKED == "1"
SETTINGS = tomllib.loads(Path("pyproject.toml").read_text())
OPTIONS, PROJECT = SETTINGS["tool"]["baton"], SETTINGS["project"]
#: mypyc takes the types of what a router imports into the C code, so it has to be there as well.
NEEDS = [*OPTIONS["compiler"], *PROJECT["dependencies"], *PROJECT["optional-dependencies"]["router"]]


class Compiled(Distribution):
    """A package with extensions. setuptools asks for that before it knows them."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel is for one Python and machine."""
        return True


class CompileModules(build_ext):
    """Has mypyc write the C files. That cannot happen earlier: pip asks what a build needs before mypyc is there."""

    def finalize_options(self) -> None:
        """Name what is to be built."""
        from mypyc.build import mypycify

        # An extra that is not installed, such as opentelemetry, is not compiled against. ``make lint`` checks types.
        arguments = ["--config-file=", "--ignore-missing-imports", *OPTIONS["compiled"]]
        self.distribution.ext_modules = mypycify(arguments, opt_level="3", debug_level="0")
        super().finalize_options()


if COMPILES:
    setup(distclass=Compiled, cmdclass={"build_ext": CompileModules}, setup_requires=NEEDS)
else:
    setup()
