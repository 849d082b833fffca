"""Grammars on a rank: the library, the state along a sequence, and the masks."""

from __future__ import annotations

import queue

import pytest
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from baton_serve.core.protocol.steps import (
    CompileGrammar,
    ForgetGrammar,
    GrammarCompiled,
    NewSequence,
    SamplingParams,
    Vocabulary,
)
from baton_serve.workers.grammar.matchers import matcher_of
from baton_serve.workers.grammar.notation import grammar_of
from baton_serve.workers.rank.grammar.library import Constraint, GrammarLibrary
from baton_serve.workers.rank.grammar.masks import MaskWriter, banned
from baton_serve.workers.rank.sampling.sampler import sample
from baton_serve.workers.rank.sequences import RankSequence
from tests.kits.whole import reference

EOS = 0
PADDING = 37
#: Seconds until a thread that does not answer fails its test.
PATIENCE_S = 60.0


class Known:
    """A library with the reference model's vocabulary and some padding."""

    def __init__(self) -> None:
        self.tokenizer = reference.tokenizer()
        self.vocab_size = len(self.tokenizer) + PADDING
        self.answers: list[GrammarCompiled] = []
        self.library = GrammarLibrary(self.answers.append, self.vocab_size)
        self.library.handle(Vocabulary(self.tokenizer.backend_tokenizer.to_str(), [EOS]))

    def follow(self, regex: str, outputs: list[int] | None = None) -> Constraint:
        self.compile(len(self.answers), of_regex(regex))
        return self.library.follow(of_regex(regex), outputs or [])

    def compile(self, compile_id: int, grammar: str) -> str:
        """What is wrong with the grammar."""
        self.library.handle(CompileGrammar(compile_id, grammar))
        assert self.answers[-1].compile_id == compile_id
        return self.answers[-1].error

    def allowed(self, constraint: Constraint) -> set[int]:
        """The tokens that may come next."""
        scores = self.masked([constraint], torch.zeros(1, self.vocab_size))
        return {int(token) for token in scores[0].isfinite().nonzero()}

    def masked(self, constraints: list[Constraint | None], scores: torch.Tensor) -> torch.Tensor:
        masks = MaskWriter().begin(constraints, self.library.mask_words)
        assert masks is not None
        return masks.apply(scores, scores)

    def token(self, text: str) -> int:
        (token,) = self.tokenizer.encode(text, add_special_tokens=False)
        return int(token)


def of_regex(regex: str) -> str:
    return grammar_of("regex", regex)


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def test_only_what_the_grammar_lets_come_next(known: Known) -> None:
    constraint = known.follow("[xy]")
    assert known.allowed(constraint) == {known.token("x"), known.token("y")}
    constraint.append(known.token("x"))
    assert known.allowed(constraint) == {EOS}
    constraint.append(EOS)
    assert constraint.error == ""


def test_the_end_is_allowed_where_the_grammar_may_end(known: Known) -> None:
    constraint = known.follow("[xy]+")
    assert EOS not in known.allowed(constraint)
    constraint.append(known.token("x"))
    assert {EOS, known.token("y")} <= known.allowed(constraint)


def test_replayed_tokens_give_the_same_state(known: Known) -> None:
    outputs: list[int] = []
    constraint = known.follow("[xyz]{8}")
    for letter in "xyzzyxxy":
        assert known.allowed(constraint) == known.allowed(known.follow("[xyz]{8}", outputs))
        outputs.append(known.token(letter))
        constraint.append(outputs[-1])
    assert known.allowed(known.follow("[xyz]{8}", outputs)) == {EOS}


def test_an_output_that_does_not_follow(known: Known) -> None:
    """The row is not masked any more, and the error says where."""
    everything = set(range(known.vocab_size))
    replayed = known.follow("x", [known.token("x"), known.token("y")])
    assert "token 1" in replayed.error and known.allowed(replayed) == everything
    appended = known.follow("x")
    appended.append(known.token("y"))
    assert appended.error and known.allowed(appended) == everything


def test_a_grammar_that_fails_at_a_mask(known: Known) -> None:
    """Its row is not masked any more, and the error says why; other rows get their masks."""
    limits = LLParserLimits(step_lexer_fuel=1)
    constraint = Constraint(LLMatcher(known.library._tokenizer, of_regex("[a-z]{5}x"), limits=limits, log_level=0))
    masked = known.masked([known.follow("y"), constraint], torch.zeros(2, known.vocab_size))
    assert masked[0].isfinite().nonzero().flatten().tolist() == [known.token("y")]
    assert masked[1].isfinite().all()
    assert "too many expressions" in constraint.error
    assert known.allowed(constraint) == set(range(known.vocab_size))


def test_compiling_says_what_is_wrong() -> None:
    known = Known()
    assert known.compile(1, of_regex("a")) == known.compile(3, of_regex("b")) == ""
    assert "unclosed group" in known.compile(2, of_regex("("))
    assert "NoExtensionBias" in known.compile(4, LLMatcher.grammar_from_lark("start: start"))
    assert repr(known.library) == "<GrammarLibrary 2 grammars>"


def test_what_is_forgotten_is_an_error_of_its_sequence() -> None:
    """No step compiles. What was asked for again meanwhile stays."""
    known = Known()
    grammar = of_regex("[x]")
    for compile_id in (1, 2):
        assert known.compile(compile_id, grammar) == ""
    known.library.forget(ForgetGrammar(1))
    before = known.library.follow(grammar, [])
    assert known.allowed(before) == {known.token("x")}
    known.library.forget(ForgetGrammar(2))
    known.library.forget(ForgetGrammar(2))
    assert "does not have it" in known.library.follow(grammar, []).error
    assert known.allowed(before) == {known.token("x")}, "sequences that follow it go on"
    assert known.compile(3, grammar) == "" == known.library.follow(grammar, []).error


def test_without_a_vocabulary() -> None:
    answers: list[GrammarCompiled] = []
    library = GrammarLibrary(answers.append, 5)
    library.handle(CompileGrammar(1, of_regex("a")))
    assert "tokenizer" in answers[0].error
    assert library.follow(of_regex("a"), []).error


def test_the_thread_outlives_what_the_library_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a grammar or a vocabulary makes it raise, the next one is compiled."""
    answers: queue.SimpleQueue[GrammarCompiled] = queue.SimpleQueue()
    library = GrammarLibrary(answers.put, 5)
    library.submit(Vocabulary("no tokenizer", [EOS]))
    library.submit(CompileGrammar(1, of_regex("a")))
    assert "tokenizer" in answers.get(timeout=PATIENCE_S).error
    library.submit(Vocabulary(reference.tokenizer().backend_tokenizer.to_str(), [EOS]))
    compiled = iter([RuntimeError("of a kind that none expects"), matcher_of])

    def once(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        match next(compiled):
            case RuntimeError() as error:
                raise error
            case real:
                return real(tokenizer, grammar)

    monkeypatch.setattr("baton_serve.workers.rank.grammar.library.matcher_of", once)
    for compile_id in (2, 3):
        library.submit(CompileGrammar(compile_id, of_regex("a")))
    assert answers.get(timeout=PATIENCE_S) == GrammarCompiled(2, "of a kind that none expects")
    assert answers.get(timeout=PATIENCE_S) == GrammarCompiled(3, "")


class Panic(BaseException):
    """As the library's Rust raises it: no Exception."""


def test_the_step_gets_what_the_library_raises_over_a_mask(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the thread computes the masks of the next one."""
    executors = iter([Panic("none"), LLExecutor])

    def once(num_threads: int) -> LLExecutor:
        match next(executors):
            case Panic() as panic:
                raise panic
            case real:
                return real(num_threads=num_threads)

    monkeypatch.setattr("baton_serve.workers.rank.grammar.masks.LLExecutor", once)
    writer, scores = MaskWriter(), torch.zeros(1, known.vocab_size)

    def masked() -> torch.Tensor:
        masks = writer.begin([known.follow("x")], known.library.mask_words)
        assert masks is not None
        return masks.apply(scores, scores)

    with pytest.raises(Panic):
        masked()
    assert int(masked()[0].argmax()) == known.token("x")


def test_rows_without_a_grammar_are_left_alone(known: Known) -> None:
    scores = torch.randn(3, known.vocab_size, generator=torch.Generator().manual_seed(1))
    masked = known.masked([None, known.follow("x"), None], scores)
    assert torch.equal(masked[0], scores[0]) and torch.equal(masked[2], scores[2])
    assert int(masked[1].argmax()) == known.token("x")
    assert MaskWriter().begin([None], known.library.mask_words) is None


@pytest.mark.parametrize("size", [1, 31, 32, 33, 200])
def test_a_token_is_banned_whose_bit_is_not_set(size: int) -> None:
    drawn = torch.Generator().manual_seed(size)
    words = torch.randint(-(2**31), 2**31, (6, 8), generator=drawn, dtype=torch.int32)
    words[0], words[1], words[2, ::2], words[3, ::2] = 0, -1, 0, -1
    scores = torch.randn(6, size, generator=drawn)
    scores[:, ::7] = float("-inf")
    places = torch.arange(size)
    is_set = (words[:, places // 32].to(torch.int64) >> places % 32) & 1
    found = banned(scores, words)
    assert torch.equal(found, scores.masked_fill(is_set == 0, float("-inf")))
    assert found[0].isneginf().all() and torch.equal(found[1], scores[1])


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_form_wins_over_bans(known: Known, temperature: float) -> None:
    """Other parameters choose among what the grammar lets come next; where they leave nothing, it is chosen anyway."""
    x, y = known.token("x"), known.token("y")
    logits = torch.zeros(1, known.vocab_size)

    def token(**more: object) -> int:
        params = SamplingParams(temperature=temperature, **more)  # type: ignore[arg-type]
        row = RankSequence(NewSequence(0, [1], [], params, []), known.vocab_size, known.follow("[xy]"))
        (draw,) = sample(logits, [row], MaskWriter().begin([row.constraint], known.library.mask_words))
        return draw.token

    assert token(logit_bias={x: 50.0}) == x
    assert token(logit_bias={x: 50.0}, bad_words=((x,),)) == y
    assert token(bad_words=((x,), (y,))) in (x, y)
    assert token(allowed_token_ids=(EOS,)) in (x, y)
    assert token(top_k=1, min_tokens=5, min_tokens_banned=(x,)) == y
