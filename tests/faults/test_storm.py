"""A short storm: processes of every kind die, stand still and forget under load, and all get the right tokens."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.torture.report import print_report
from baton_serve.baton.torture.run import RunOutcome, RunPlan, run
from baton_serve.baton.torture.shape import Shape

if TYPE_CHECKING:
    from tests.conftest import Tell

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

#: Another one for a run by hand: what is asked, and what is done to whom.
SEED = int(os.environ.get("FAULTS_STORM_SEED", "5"))
PLAN = RunPlan(SEED, kills=15, shape=Shape(prefill=2, decode=2, routers=2), num_questions=16, cost_rounds=2)


def told(outcome: RunOutcome, folder: Path) -> str:
    """The report, with what happened to each wrong answer."""
    text = io.StringIO()
    print_report(outcome, Console(file=text, width=160), folder)
    return text.getvalue()


async def test_everybody_gets_what_is_theirs_whoever_dies(tmp_path: Path, tell: Tell) -> None:
    outcome = RunOutcome(PLAN)
    await run(outcome, Cluster(tmp_path, PLAN.shape.specs), lambda _: None)
    report = told(outcome, tmp_path)
    tell(f"FAULTS_STORM_SEED={SEED}\n{report}")
    assert outcome.good, report
    assert sum(fault.is_kill for fault in outcome.faults) >= PLAN.kills
