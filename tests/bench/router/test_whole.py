"""A short run of Baton on stub engines, with all of its parts."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

from bench.performance.machine import ROOT
from bench.processes import two_cores
from bench.router.__main__ import named_folder
from bench.router.harness.load import arguments
from bench.router.native import build
from bench.router.native.build import BuildError
from bench.router.rounds import Plan, measure
from bench.router.routers.baton import Baton
from bench.router.routers.wheels import vllm_router
from bench.router.workloads import WORKLOADS


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is needed for stub engines and load generator")
@pytest.mark.skipif(two_cores() is None, reason="two cores are needed: one for the router, one for the load")
def test_a_run_measures_baton_and_names_who_is_not_there(tmp_path: Path) -> None:
    cores = two_cores()
    assert cores is not None
    workloads = [WORKLOADS["A"], WORKLOADS["B"]]
    plan = Plan([Baton(), vllm_router(tmp_path)], workloads, 1, cores, tmp_path, seconds=0.3)
    said: list[str] = []
    found = measure(plan, said.append)
    assert list(found.missing) == ["vllm-router"], said
    samples = found.runs[0]
    assert set(samples) == {("baton", "A"), ("baton", "B")}
    for one in samples.values():
        assert one.failed == 0
        assert one.legs == (1, 1, 0, 0), "P and then D, once each"
        assert one.router_cpu_s > 0 and one.rss_mib > 0


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    with pytest.raises(BuildError, match="no gcc"):
        build.build("engine", tmp_path)


def test_the_load_generator_is_told_all_numbers() -> None:
    told = arguments(WORKLOADS["O"], 8000, 2.5)
    assert told == ["8000", "1024", "60.0", "0.7", "2.5", "32", "1", "4096", "10000", "5000"]


def test_another_baton_is_a_name_and_a_checkout(tmp_path: Path) -> None:
    assert named_folder(f"before={ROOT}") == Baton("before", ROOT)
    for wrong in ("before", f"be fore={ROOT}", f"before={tmp_path}"):
        with pytest.raises(argparse.ArgumentTypeError, match="not NAME=FOLDER"):
            named_folder(wrong)
