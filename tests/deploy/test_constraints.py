"""The pins of what is tested together, beside the ranges that the package asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> list[Requirement]:
    """All that the package asks for, but for itself with an extra."""
    extras = PROJECT["optional-dependencies"].values()
    everything = map(Requirement, [*PROJECT["dependencies"], *(item for extra in extras for item in extra)])
    return [item for item in everything if item.name != PROJECT["name"]]


def test_every_dependency_has_a_range_and_a_pin_in_it() -> None:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): pin for name, pin in pins.items()}
    for requirement in requirements():
        operators = sorted(specifier.operator for specifier in requirement.specifier)
        assert operators == ["<", ">="], requirement
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_the_makefile_and_the_images_install_the_torch_that_is_pinned() -> None:
    (pin,) = re.findall(r"^torch==(\S+)$", (ROOT / "deploy" / "constraints.txt").read_text(), re.MULTILINE)
    for name in ("Makefile", "Dockerfile"):
        found = re.findall(r"torch==(\d[\d.]*)", (ROOT / name).read_text())
        assert found and set(found) == {pin}, name
