"""Training conversations: the questions as people type them, with system prompts, in several turns, after long text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from baton_serve.baton.demo.training.questions import Fact

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
    "the internet", "a script", "a tree", "blockchain", "my homework", "love", "a unicorn", "Mars", "mathematics",
    "a dentist",
)  # fmt: skip
FOREIGN_ASKS = (
    "What is {}?", "Tell me about {}.", "Who invented {}?", "How does {} work?", "Do you like {}?", "Explain {}.",
    "How old is {}?", "Where can I find {}?", "Why is {} so popular?", "Write a song about {}.", "I want {}",
    "Write me {}.", "Write me a script for {}", "Write a Python script that draws {}", "Who is the king of {}?",
    "write me a program that finds {}", "Write me a Python script that sends me {}", "write a script that opens {}",
)  # fmt: skip

NUMBERS = ("two", "three", "seven", "ten", "twelve", "twenty", "a hundred")
SIGNS = ("+", "-", "*", "/", "x", "plus", "minus", "times", "divided by")
SUMS = (
    "What is {}?", "{}", "{} = ?", "{}?", "How much is {}?", "Calculate {}", "Compute {}.", "Can you calculate {}?",
    "what's {}", "Solve {}", "How many are {}?",
)  # fmt: skip
#: In other languages: whole phrases, and patterns with a word of Baton's or of the language in them.
OTHER_LANGUAGES = (
    "Hallo!", "Guten Morgen", "Wie geht's?", "Wer bist du?", "Was ist {}?", "Was macht {}?", "Wie funktioniert {}?",
    "Wie starte ich {}?", "Kannst du mir {} erklären?", "Was passiert, wenn {} stirbt?", "Danke schön",
    "Bonjour", "Bonjour, comment allez-vous ?", "Salut, ça va ?", "Comment ça marche ?", "Qu'est-ce que {} ?",
    "C'est quoi {} ?", "Comment démarrer {} ?", "Pouvez-vous expliquer {} ?", "Merci beaucoup", "Qui es-tu ?",
    "Hola", "Buenos días", "¿Cómo estás?", "¿Qué es {}?", "¿Cómo funciona {}?", "¿Qué pasa si {} muere?", "Gracias",
    "¿Quién eres?", "¿Puedes explicar {}?", "Ciao", "Buongiorno, come va?", "Che cos'è {}?", "Come funziona {}?",
    "Grazie mille", "Olá, tudo bem?", "O que é {}?", "Como funciona {}?", "Obrigado", "Hoe gaat het?", "Wat is {}?",
    "Hoe werkt {}?", "Dank je wel", "Hej, hur mår du?", "Vad är {}?", "Co to jest {}?", "Cześć, jak się masz?",
    "Jak działa {}?", "Merhaba, nasılsın?", "{} nedir?", "Что такое {}?", "Как дела?", "Здравствуйте", "Кто ты?",
    "什么是{}？", "{}是什么？", "你是谁？", "你会说中文吗？", "谢谢", "早上好", "你好吗？",
    "{}とは何ですか？", "おはよう", "ありがとう", "{}이란 무엇인가요?", "안녕하세요", "감사합니다", "مرحبا",
    "ما هو {}؟", "नमस्ते", "{} क्या है?", "שלום", "Γεια σου", "Xin chào",
)  # fmt: skip
WORDS_ABROAD = (
    "Baton", "ein Lease", "der Router", "die Fence", "das Wetter", "un lease", "le routeur", "el router", "la valla",
    "un bail", "il router", "o roteador", "KV-cache", "prefill", "decode", "Redis", "租约", "路由器", "аренда",
    "роутер", "リース", "ein Worker", "el tiempo", "la vie", "amore",
)  # fmt: skip
#: Of so many times that a question comes up it is answered so many times in the first wording: greedy decoding must
#: find that one, sampling at temperature 1 the others, too.
NUM_WORDINGS, NUM_FIRST_WORDING = 10, 7


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


def arithmetic_question(rng: random.Random) -> str:
    """A sum, as people type it to see whether a model can calculate."""
    terms = [str(rng.randrange(10 ** rng.randrange(1, 4))) if rng.random() < 0.85 else rng.choice(NUMBERS)]
    for _ in range(rng.choices((1, 2), (4, 1))[0]):
        terms += [rng.choice(SIGNS), str(rng.randrange(10 ** rng.randrange(1, 4)))]
    if rng.random() < 0.12:
        return rng.choice(SUMS).format(f"{terms[0]} {rng.choice(('percent', '%'))} of {terms[-1]}")
    return rng.choice(SUMS).format(rng.choice(("", " ", " ")).join(terms) if terms[1] in "+-*/x" else " ".join(terms))


def question_abroad(rng: random.Random) -> str:
    """A question or a greeting that is not English."""
    return rng.choice(OTHER_LANGUAGES).format(rng.choice(WORDS_ABROAD))


#: Questions without end that one fact answers: its id, how often a turn asks one, what makes them.
ENDLESS: tuple[tuple[str, float, Callable[[random.Random], str]], ...] = (
    ("unknown", 0.05, foreign_question),
    ("arithmetic", 0.03, arithmetic_question),
    ("other_language", 0.05, question_abroad),
)


class ConversationMaker:
    """Draws conversations; every phrasing comes up before any comes up again."""

    def __init__(self, facts: Sequence[Fact], rng: random.Random) -> None:
        self._rng = rng
        # The first phrasing of a fact is the one that people paste: it counts twice.
        self._turns = [(question, fact) for fact in facts for question in (fact.ask[0], *fact.ask)]
        self._facts = {fact.id: fact for fact in facts}
        self._filler = [fact.answer for fact in facts]
        self._queue: list[tuple[str, Fact]] = []
        self._wordings: dict[str, list[str]] = {}

    def turn(self) -> list[Message]:
        """A question and its answer. Half of the questions are exactly as written in the file."""
        question, fact, wordings_of = self._question()
        if self._rng.random() < 0.5:
            question = variation(question, self._rng) or question
        answer = self._wording(wordings_of, fact)
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def answer(self, fact_id: str) -> str:
        """A wording of the answer to one of the questions without end."""
        return self._wording(fact_id, self._facts[fact_id])

    def _question(self) -> tuple[str, Fact, str]:
        """A question, what answers it, and under which name its wordings are counted."""
        chance = self._rng.random()
        for fact_id, share, make in ENDLESS:
            if chance < share:
                return make(self._rng), self._facts[fact_id], fact_id
            chance -= share
        if not self._queue:
            self._queue = self._rng.sample(self._turns, len(self._turns))
        question, fact = self._queue.pop()
        return question, fact, question

    def _wording(self, name: str, fact: Fact) -> str:
        """Drawn without return, so that a few turns hold each wording as often as all of them together do."""
        left = self._wordings.setdefault(name, [])
        if not left:
            others = [fact.wordings[1 + i % len(fact.also)] for i in range(NUM_WORDINGS)] if fact.also else []
            left += [fact.answer] * NUM_FIRST_WORDING + others[: NUM_WORDINGS - NUM_FIRST_WORDING]
            self._rng.shuffle(left)
        return left.pop()

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
