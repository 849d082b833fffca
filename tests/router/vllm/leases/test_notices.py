"""What is built is read by vLLM's rules as what was meant, and nothing else can be built."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton_serve.core.protocol.id_syntax import MAX_ID_CHARS
from baton_serve.router.vllm.leases.notices import MAX_NOTICE_BYTES, release, renewals
from tests.kits.vllm.notifications import Read, Renewed, read_notification

#: What request ids of vLLM look like, and all else that a notification carries unharmed.
IDS = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=",:"), min_size=1, max_size=128
).filter(lambda text: text not in {"HB", "PUSH_REG"})
ANY_TEXT = st.text(max_size=MAX_ID_CHARS + 2)


@given(st.lists(IDS, max_size=200))
def test_renewals_are_read_as_they_were_meant(ids: list[str]) -> None:
    notices = renewals(ids)
    read = [read_notification(notice) for notice in notices]
    assert all(isinstance(one, Renewed) for one in read)
    assert [name for one in read if isinstance(one, Renewed) for name in one.ids] == ids
    assert all(len(notice) <= MAX_NOTICE_BYTES for notice in notices)


@given(IDS)
def test_a_release_is_read_as_the_only_read(lease_id: str) -> None:
    assert read_notification(release(lease_id)) == Read(lease_id, 1)


@given(ANY_TEXT, IDS)
@example("HB", "a")
def test_an_id_goes_through_unharmed_or_is_refused(text: str, other: str) -> None:
    try:
        built = release(text)
    except ValueError:
        with pytest.raises(ValueError, match="the id of a lease"):
            renewals([other, text])
    else:
        assert read_notification(built) == Read(text, 1)
        assert [read_notification(notice) for notice in renewals([other, text])] == [Renewed([other, text])]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "HB",
        "PUSH_REG",
        "a,b",
        "a:b",
        "HB:a",
        "PUSH_REG:x",
        "a\n",
        "a\0",
        "\x7f",
        "ä",
        "\ud800",
        "a" * (MAX_ID_CHARS + 1),
    ],
)
def test_an_id_that_would_break_the_list_or_the_worker_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="the id of a lease"):
        release(wrong)
    with pytest.raises(ValueError, match="the id of a lease"):
        renewals(["right", wrong])


def test_many_leases_are_renewed_by_as_few_notifications_as_fit() -> None:
    ids = [f"cmpl-{number:032x}-0-0123abcd" for number in range(500)]
    notices = renewals(ids)
    per_notice = (MAX_NOTICE_BYTES - len("HB:") + 1) // (len(ids[0]) + 1)
    assert len(notices) == -(-len(ids) // per_notice)
    assert renewals([]) == []


@pytest.mark.parametrize("payload", [b"no colon", b"a:b", b"\xff:1"])
def test_the_reader_of_these_tests_is_as_touchy_as_vllm(payload: bytes) -> None:
    with pytest.raises(ValueError):
        read_notification(payload)
