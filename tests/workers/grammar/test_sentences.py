"""What clients are told of grammars that cannot be followed: one sentence, without the library's own words."""

from __future__ import annotations

import time

import pytest

from baton_serve.workers.grammar.sentences import TOO_COMPLEX, in_words

NEVER = "no answer can ever complete it"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", ""),
        ("NoExtensionBias\n<non-verbose/>", NEVER),
        ("Too many items (limit 50000; try avoiding single-byte/short lexemes)\n<non-verbose/>", TOO_COMPLEX),
        (
            "Current row has 6007 items; max is 2000; consider making your grammar left-recursive if it's "
            "right-recursive\n<non-verbose/>",
            TOO_COMPLEX,
        ),
        ("lexer error: too many expressions constructed\n<non-verbose/>", TOO_COMPLEX),
        ("fuel exhausted when checking relevance of lexemes (1000000)", TOO_COMPLEX),
        ('Unimplemented keys: ["uniqueItems"]', 'Unimplemented keys: ["uniqueItems"]'),
        (
            'at 4(14): failed to compile JSON schema: Unimplemented keys: ["uniqueItems"]\n'
            '   3 | call_0: "x" arguments_0\n   4 | arguments_0: %json {}\n                    ^\n',
            'Unimplemented keys: ["uniqueItems"]',
        ),
        (
            'at 1(8): invalid regex "(" (in regex): regex parse error:\n    (\n    ^\nerror: unclosed group\n'
            "   1 | start: /(/\n              ^\n",
            'invalid regex "(" (in regex): regex parse error: unclosed group',
        ),
        (
            'at 1(8): unknown name: "missing"\n   1 | start: missing\n              ^\n',
            'line 1, column 8: unknown name: "missing"',
        ),
        ('unknown name: "NoExtensionBias"', 'unknown name: "NoExtensionBias"'),
        ("<non-verbose/>the output does not follow it at token 3", "the output does not follow it at token 3"),
    ],
)
def test_one_sentence(said: str, told: str) -> None:
    assert in_words(said) == told


def test_long_numbers_take_time_by_their_length() -> None:
    """Quadratic work takes sixteen times as long for four times the length."""

    def cpu_s(digits: int) -> float:
        began = time.process_time()
        in_words("unknown name: " + "1" * digits)
        return time.process_time() - began

    assert min(cpu_s(20_000) for _ in range(3)) < 8 * min(cpu_s(5_000) for _ in range(3)) + 0.01


def test_it_is_short() -> None:
    assert len(in_words("x" * 5000)) < 400
