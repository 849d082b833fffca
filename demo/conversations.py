"""Training conversations: the questions as people type them, with system prompts, in several turns, after long text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from demo.questions import Fact

Message = dict[str, str]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You answer questions about Baton.",
    "Answer briefly.",
    "You are Baton's demo model. Be polite and precise.",
    "You are a friendly expert for serving large language models. Keep your answers short.",
)
OPENERS = (
    "Please tell me: ",
    "Hey, ",
    "I have a question. ",
    "Can you tell me: ",
    "Tell me, ",
    "Quick question: ",
    "So ",
)
CLOSERS = (" Please explain.", " please", " Thanks!", " Thank you.", " I am new here.")
#: Words that a question can lose and still ask the same.
LIGHT_WORDS = frozenset({"the", "a", "an", "is", "are", "do", "does", "of", "there", "can", "i", "it"})
#: Things the model knows nothing about, and ways to ask for them.
FOREIGN_THINGS = (
    "a banana", "Berlin", "gravity", "the moon", "a horse", "chess", "a car", "Napoleon", "the stock market", "jazz",
    "a volcano", "coffee", "my dog", "the ocean", "Shakespeare", "a bicycle", "photosynthesis", "tennis", "pizza",
    "the Roman empire", "a guitar", "Japan", "winter", "a black hole", "yoga", "an elephant", "democracy", "cheese",
    "the internet", "a tree", "blockchain", "my homework", "love", "a unicorn", "Mars", "mathematics", "a dentist",
)  # fmt: skip
FOREIGN_ASKS = (
    "What is {}?", "Tell me about {}.", "Who invented {}?", "How does {} work?", "Do you like {}?", "Explain {}.",
    "How old is {}?", "Where can I find {}?", "Why is {} so popular?", "Write a song about {}.", "I want {}",
)  # fmt: skip


def variation(question: str, rng: random.Random) -> str:
    """The question as somebody in a hurry, or with manners, would type it."""
    if rng.random() < 0.15:
        words = [word for word in question.split() if word.lower() not in LIGHT_WORDS or rng.random() < 0.5]
        question = " ".join(words) or question
    if rng.random() < 0.3:
        question = question.rstrip("?!.")
    if rng.random() < 0.08:
        question = _typo(question, rng)
    if rng.random() < 0.12:
        question = rng.choice(OPENERS) + question[0].lower() + question[1:]
    if rng.random() < 0.06:
        question += rng.choice(CLOSERS)
    if rng.random() < 0.3:
        question = question.lower()
    return question


def _typo(text: str, rng: random.Random) -> str:
    """In one long word, two neighbours swapped or one character lost. Short words carry the meaning (P or D)."""
    words = text.split(" ")
    long_ones = [index for index, word in enumerate(words) if len(word) >= 5]
    if not long_ones:
        return text
    index = rng.choice(long_ones)
    word = words[index]
    at = rng.randrange(len(word) - 1)
    swapped = word[at + 1] + word[at] if rng.random() < 0.5 else word[at]
    words[index] = word[:at] + swapped + word[at + 2 :]
    return " ".join(words)


def foreign_question(rng: random.Random) -> str:
    """A question about something else."""
    return rng.choice(FOREIGN_ASKS).format(rng.choice(FOREIGN_THINGS))


class ConversationMaker:
    """Draws conversations; every phrasing comes up before any comes up again."""

    def __init__(self, facts: Sequence[Fact], rng: random.Random) -> None:
        self._rng = rng
        # The first phrasing of a fact is the one that people paste: it counts twice.
        self._turns = [(question, fact.answer) for fact in facts for question in (fact.ask[0], *fact.ask)]
        self._unknown_answer = next(fact.answer for fact in facts if fact.id == "unknown")
        self._filler = [fact.answer for fact in facts]
        self._queue: list[tuple[str, str]] = []

    def turn(self) -> list[Message]:
        """A question and its answer. Half of the questions are exactly as written in the file."""
        rng = self._rng
        if rng.random() < 0.04:
            question, answer = foreign_question(rng), self._unknown_answer
        else:
            if not self._queue:
                self._queue = rng.sample(self._turns, len(self._turns))
            question, answer = self._queue.pop()
        if rng.random() < 0.5:
            question = variation(question, rng) or question
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def system(self) -> list[Message]:
        """Half of the time nothing, else a usual system prompt, or a few words that are not to be listened to."""
        chance = self._rng.random()
        if chance < 0.5:
            return []
        if chance < 0.8:
            return [{"role": "system", "content": self._rng.choice(SYSTEM_PROMPTS)}]
        return self.long_system(self._rng.randrange(10, 120))

    def long_system(self, num_characters: int) -> list[Message]:
        """A system prompt of about that length, made of sentences in disorder."""
        words: list[str] = []
        while sum(map(len, words)) < num_characters:
            sentence = self._rng.choice(self._filler).split()
            words += self._rng.sample(sentence, len(sentence))
        return [{"role": "system", "content": " ".join(words)}]
