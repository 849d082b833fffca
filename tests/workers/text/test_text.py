"""Detokenizer, stop strings and both together: text must not depend on how it was cut."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from baton_serve.workers.text.detokenizer import CONTEXT_TOKENS, MAX_PENDING, Detokenizer
from baton_serve.workers.text.text_stream import StopStrings, TextStream
from baton_serve.workers.text.tokenizer import byte_level_bytes, sentencepiece_bytes

SPECIAL = "<|x|>"


@functools.cache
def byte_level() -> Tokenizer:
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    fast.train_from_iterator(
        ["the runner holds the baton \u00e9\u00e9\u20ac\u20ac until the other one has it"] * 3, trainer
    )
    return fast


@functools.cache
def sentencepiece() -> Tokenizer:
    """As Llama 2 has it: a space in front, bytes for what the vocabulary lacks, and a decoder that strips one space."""
    pieces = [SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefgh", "\u2581ab", "\u2581cd", "ef"]
    merges = [("\u2581", "a"), ("\u2581a", "b"), ("\u2581", "c"), ("\u2581c", "d"), ("e", "f")]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "\u2581a", "\u2581c"])}
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True))
    fast.add_special_tokens([SPECIAL])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return fast


def decode(fast: Tokenizer, tokens: list[int]) -> str:
    return fast.decode(tokens, skip_special_tokens=True)


def detokenizer(fast: Tokenizer, prompt: list[int] | None = None) -> Detokenizer:
    special = fast.token_to_id(SPECIAL)
    size = fast.get_vocab_size()
    return Detokenizer(
        lambda tokens: decode(fast, list(tokens)), lambda token: token != special and token < size, prompt or []
    )


def run(stream: Detokenizer | TextStream, tokens: list[int]) -> list[str]:
    return [*(stream.push(token) for token in tokens), stream.flush()]


@given(st.lists(st.integers(0, 310), max_size=60))
def test_byte_level_deltas_join_to_the_full_text_for_any_tokens(tokens: list[int]) -> None:
    fast = byte_level()
    assert "".join(run(detokenizer(fast), tokens)) == decode(fast, [token for token in tokens if token < 300])


@given(st.text(max_size=40), st.lists(st.integers(0, 5), max_size=3))
def test_sentencepiece_deltas_join_to_the_full_text(text: str, special_at: list[int]) -> None:
    fast = sentencepiece()
    tokens = fast.encode("\u2581" + text.replace(" ", "\u2581"), add_special_tokens=False).ids
    for place in special_at:
        # Never inside a run of bytes, where the full decoding joins what a special token parts.
        if all(token > 256 for token in tokens):
            tokens.insert(place, fast.token_to_id(SPECIAL))
    assert "".join(run(detokenizer(fast), tokens)) == decode(fast, tokens)


@given(st.text(max_size=30))
def test_a_whole_text_never_shows_a_broken_character(text: str) -> None:
    clean = text.replace("\ufffd", "")
    tokens = byte_level().encode(clean).ids
    assert all("\ufffd" not in delta for delta in run(detokenizer(byte_level()), tokens))


def test_the_prompt_gives_the_first_token_its_leading_space() -> None:
    fast = sentencepiece()
    ab, cd = fast.token_to_id("\u2581ab"), fast.token_to_id("\u2581cd")
    assert run(detokenizer(fast), [cd]) == ["cd", ""]
    assert run(detokenizer(fast, [ab]), [cd]) == [" cd", ""]
    assert run(detokenizer(fast, [fast.token_to_id(SPECIAL), ab, ab, ab, ab, ab]), [cd]) == [" cd", ""]


def test_a_lone_space_keeps_the_next_one() -> None:
    fast = sentencepiece()
    tokens = [fast.token_to_id(piece) for piece in ("a", "\u2581", "\u2581ab", "\u2581", "\u2581", "\u2581cd")]
    assert "".join(run(detokenizer(fast), tokens)) == decode(fast, tokens) == "a  ab   cd"


def test_the_window_stays_small() -> None:
    fast = byte_level()
    seen: list[int] = []

    def counting(tokens: list[int]) -> str:
        seen.append(len(tokens))
        return decode(fast, tokens)

    stream = Detokenizer(counting, lambda token: True)  # type: ignore[arg-type]
    broken = fast.encode("\u20ac").ids[:1] if len(fast.encode("\u20ac").ids) > 1 else [fast.token_to_id("\u0122")]
    for token in [*fast.encode("the runner").ids * 50, *broken * 200]:
        stream.push(token)
    assert max(seen) <= 2 * MAX_PENDING + CONTEXT_TOKENS


def test_pieces_stand_for_bytes() -> None:
    assert byte_level_bytes("\u0120go\u00c3\u00a9") == b" go\xc3\xa9"
    assert byte_level_bytes("<|\u4e2d|>") == "<|\u4e2d|>".encode()
    assert sentencepiece_bytes("<0xE2>") == b"\xe2"
    assert sentencepiece_bytes("\u2581go") == b" go"
    fast = byte_level()
    pieces = [fast.id_to_token(token) for token in fast.encode("h\u00e9 \u4e2d\n").ids]
    assert b"".join(map(byte_level_bytes, pieces)) == "h\u00e9 \u4e2d\n".encode()


def chunks_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def stopped_text(chunks: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    out = "".join(map(matcher.push, chunks))
    return out if matcher.found else out + matcher.flush(), matcher.found


def expected_text(text: str, stops: list[str]) -> str:
    """By definition: the first end of any stop string, cut at the longest one that ends there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - len(max(ending, key=len))]
    return text


letters = st.text("ab", max_size=24)
stop = st.text("ab", min_size=1, max_size=5)


@given(letters, st.lists(stop, min_size=1, max_size=4), st.lists(st.integers(0, 24), max_size=8))
def test_stop_strings_do_not_depend_on_the_chunks(text: str, stops: list[str], cuts: list[int]) -> None:
    out, found = stopped_text(chunks_of(text, cuts), stops)
    assert out == expected_text(text, stops)
    assert (found is not None) == any(one in text for one in stops)


@given(letters, st.lists(stop, min_size=1, max_size=4))
def test_what_came_out_is_never_taken_back(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    so_far = ""
    for character in text:
        so_far += matcher.push(character)
        assert expected_text(text, stops).startswith(so_far)


def test_nothing_is_held_back_without_need() -> None:
    matcher = StopStrings(["<end>"])
    assert [matcher.push(c) for c in "a<enx<"] == ["a", "", "", "", "<enx", ""]
    assert matcher.flush() == "<"


def text_stream(stops: list[str], min_tokens: int = 0) -> TextStream:
    return TextStream(detokenizer(byte_level()), stops, min_tokens)


def test_a_second_worker_goes_on_where_the_first_stopped() -> None:
    """P shows the first token's text, D the rest: together exactly the text of one worker."""
    tokens = byte_level().encode("\u4e2d\u20ac the end of it").ids
    for stops in ([], ["end"], ["\u20ac the"]):
        alone, first, second = (text_stream(stops) for _ in range(3))
        whole = "".join(run(alone, tokens))
        second.push(tokens[0])
        assert first.push(tokens[0]) + "".join(run(second, tokens[1:])) == whole


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, ""), (1, ""), (2, "a"), (3, "aa"), (9, "aaaa")])
def test_min_tokens_come_out_before_a_stop_string_counts(min_tokens: int, expected: str) -> None:
    stream = text_stream(["a"], min_tokens)
    token = byte_level().token_to_id("a")
    assert "".join(run(stream, [token] * 4)) == expected


@pytest.mark.parametrize(("spaced", "text"), [(True, "hi <a> <b> <a> you"), (False, "hi <a><b><a> you")])
def test_tokens_that_were_added_may_stand_without_spaces(spaced: bool, text: str) -> None:
    """A decoder that joins tokens with spaces, as WordPiece's does."""
    words = ["hi", "<a>", "<b>", "you"]
    added = {} if spaced else {1: "<a>", 2: "<b>"}
    stream = Detokenizer(lambda tokens: " ".join(words[one] for one in tokens), lambda token: True, unspaced=added)
    assert "".join(run(stream, [0, 1, 2, 1, 3])) == text
