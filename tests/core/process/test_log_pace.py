"""One line a minute for each key, and how often it happened in between."""

from __future__ import annotations

from baton_serve.core.process.log_pace import MAX_KEYS, OncePerMinute


def test_a_line_is_due_once_a_minute_and_tells_how_often_it_happened() -> None:
    now = [100.0]
    pace = OncePerMinute(lambda: now[0])
    assert [pace.due() for _ in range(3)] == [1, 0, 0]
    now[0] = 159.9
    assert pace.due() == 0
    now[0] = 160.0
    assert [pace.due(), pace.due()] == [4, 0]


def test_the_oldest_key_is_forgotten() -> None:
    now = [0.0]
    pace = OncePerMinute(lambda: now[0])
    assert all(pace.due(str(key)) for key in range(MAX_KEYS + 1))
    assert not pace.due(str(MAX_KEYS))
    assert pace.due("0")
    now[0] = 60.0
    assert pace.due(str(MAX_KEYS))
