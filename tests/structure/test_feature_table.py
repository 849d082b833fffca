"""docs/vllm.md shows the features that tests/vllm/features.py declares."""

from __future__ import annotations

from tests.structure.imports import ROOT
from tests.vllm.features import BEGIN, END, FEATURES, table


def test_the_docs_have_the_table() -> None:
    text = (ROOT / "docs/vllm.md").read_text(encoding="utf-8")
    shown = text.partition(f"{BEGIN}\n")[2].partition(END)[0].strip()
    assert shown == table(), "write what `python -m tests.vllm.features` prints between the two comments"


def test_no_two_rows_have_one_name() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
