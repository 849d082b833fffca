"""The protocol, in every state of small scopes; the known-bad variants, found; the reductions, checked."""

from __future__ import annotations

from collections import deque
from dataclasses import fields

import pytest

from tests.faults.model.__main__ import HELP, main
from tests.faults.model.scope import Scope, Variant
from tests.faults.model.search import Search, moves, search
from tests.faults.model.state import State, canonical, first_state

SCOPES = {
    "two decode workers": Scope(faults=1),
    "prefilled again": Scope(prefills=2, decode_workers=1, blocks=1, faults=1),
    "several ranks": Scope(decode_workers=1, ranks=2, faults=1),
    "several blocks": Scope(decode_workers=1, blocks=3, blocks_per_request=2, faults=1),
    "two requests": Scope(requests=2, decode_workers=1, blocks=1, faults=0),
}
#: Those with the most states.
LONG = dict.fromkeys(("several blocks", "two requests"), pytest.mark.slow)

SMALL = Scope(decode_workers=1, faults=1)
#: The smallest scope that shows each variant, and what it breaks.
TEETH = {
    Variant.NO_FENCE: (SMALL, "accepted"),
    Variant.BUMP_AFTER_WRITE: (SMALL, "accepted"),
    Variant.BUMP_AT_RELEASE: (SMALL, "refused although nobody had taken"),
    Variant.FREE_BEFORE_REAP: (Scope(decode_workers=1, faults=0), "which the store holds until later"),
    Variant.RENEW_ONE_ENGINE: (
        Scope(requests=2, prefill_workers=2, decode_workers=1, blocks=1, faults=0),
        "expired while the router wanted it",
    ),
    Variant.REUSE_DURING_READ: (Scope(requests=2, decode_workers=1, faults=0), "a read may still write"),
    Variant.COUNT_TWICE: (Scope(decode_workers=1, ranks=2, faults=1), "while a rank of its reader still reads"),
    Variant.RETRY_SAME: (Scope(prefills=2, faults=1), "failed although one fault leaves somebody"),
    Variant.EXIT_WITHOUT_RELEASE: (Scope(decode_workers=1, faults=0), "which no request owns"),
}


@pytest.mark.parametrize(
    "scope", [pytest.param(one, id=name, marks=LONG.get(name, ())) for name, one in SCOPES.items()]
)
def test_nothing_is_wrong_in_any_state(scope: Scope) -> None:
    found = search(scope)
    assert found.finding is None, f"{scope}\n{found.finding}"
    assert found.is_whole
    assert found.num_quiet


@pytest.mark.parametrize("variant", Variant)
def test_a_known_bad_variant_is_found_with_a_shortest_trace(variant: Variant) -> None:
    scope, what = TEETH[variant]
    found = search(Scope(**{**vars(scope), "variant": variant}))
    assert found.finding is not None
    assert what in found.finding.what
    assert len(found.finding.steps) in (found.depth - 1, found.depth)
    assert str(found.finding).count("\n") == len(found.finding.steps)


def test_a_reduced_search_meets_every_state() -> None:
    """Whatever can be reached without reductions is met, in its canonical form."""
    scope = Scope(decode_workers=2, blocks=1, faults=0)
    reduced = Search(scope)
    reduced.run()
    met = set(reduced.states)
    raw: set[State] = {first_state(scope)}
    pending = deque(raw)
    while pending:
        s = pending.popleft()
        assert canonical(scope, s) in met
        for _, after in moves(scope, s):
            if after not in raw:
                raw.add(after)
                pending.append(after)
    assert len(raw) > len(met)


def test_the_command_prints_what_it_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults", "0", "--decode-workers", "1"]) == 0
    assert "all states" in capsys.readouterr().out
    assert main(["--faults", "0", "--decode-workers", "1", "--variant", "free-before-reap"]) == 1
    assert "at its own deadline, unasked" in capsys.readouterr().out
    assert main(["--faults", "0", "--max-states", "9"]) == 2
    assert "stopped early" in capsys.readouterr().out


@pytest.mark.parametrize("scope", [["--faults", "-1"], ["--decode-workers", "0"], ["--requests", "0"]])
def test_a_scope_that_says_nothing_is_refused(scope: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(scope)
    assert exit_.value.code == 2
    assert "at least" in capsys.readouterr().err


def test_every_option_is_explained() -> None:
    assert set(HELP) == {one.name for one in fields(Scope)} - {"variant"}
