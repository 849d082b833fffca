"""llm-comply, a suite that checks servers against the published schemas of three APIs."""

from __future__ import annotations

from pathlib import Path

import llm_comply
from llm_comply.config import ComplianceConfig
from llm_comply.http import close_client
from llm_comply.result import TestResult, TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests
from rows import KEY, MODEL, URL, check

APIS = {"open-responses": "openresponses", "openai-chat": "openai_chat", "anthropic": "anthropic"}
#: What is refused, and why. Each of these cases has to be answered with an error that has a sentence on it.
REFUSED = {
    "image-input": "the demo model reads texts only",
    "chat-image-input": "the demo model reads texts only",
    "anth-image-input": "the demo model reads texts only",
    "compact-response": "no conversation is kept, so none is compacted",
}
CONFIG = ComplianceConfig(f"{URL}/v1", KEY, MODEL, verbose=True, timeout=120.0)


def passes(result: TestResult) -> bool:
    if result.errors or result.warnings:
        raise AssertionError("; ".join([*result.errors, *result.warnings]))
    return True


def refusal(result: TestResult) -> str:
    """Why it is refused, as the answer says it."""
    answer = result.response
    if not (isinstance(answer, dict) and "error" in answer):
        raise AssertionError(f"it is not refused: {answer}")
    return str(answer["error"]["message"]).partition(" (request ")[0]


for api, schemas in APIS.items():
    spec = SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / f"{schemas}.json"))
    cases = get_tests(api)
    runner = TestRunner(CONFIG, cases, spec)
    for case, result in zip(cases, map(runner.run_one, cases), strict=True):
        close_client()  # after a timeout it could not use its connection again
        if result.status is TestStatus.SKIPPED:
            continue
        if case.id in REFUSED:
            name = f"{api}: {case.name} is refused, as {REFUSED[case.id]}"
            check(name, lambda found=result: refusal(found), show=True)
        else:
            check(f"{api}: {case.name}", lambda found=result: passes(found))
