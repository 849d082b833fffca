"""The demo model's tokenizer and chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterable

VOCAB_SIZE = 1536
CONTEXT_TOKENS = 8192

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant")
#: Token ids are positions in this list.
SPECIAL_TOKENS = [BOS, EOS, PAD, *(f"<|{role}|>" for role in ROLES)]

#: Every message is `<|role|>text<|end|>`; content may be a string or a list of text parts, as OpenAI has both. A tool
#: is one line, `name(parameters): what it does`, because whole schemas would be most of what so small a model reads.
#: Calls and their results are written as Hermes and Qwen write them.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- if tools %}"
    "{{- '<|system|>Tools:' }}"
    "{%- for tool in tools %}"
    "{%- set function = tool['function'] %}{%- set schema = function['parameters'] or {} %}"
    "{{- '\n' + function['name'] + '(' + (schema['properties'] or {}) | join(', ') + ')' }}"
    "{%- if function['description'] %}{{- ': ' + function['description'].split('\n')[0][:60] }}{%- endif %}"
    "{%- endfor %}"
    "{{- eos_token }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- set answers = message['role'] == 'tool' %}"
    "{{- '<|user|><tool_response>\n' if answers else '<|' + message['role'] + '|>' }}"
    "{%- if message['content'] is string %}{{- message['content'] | trim }}"
    "{%- else %}{%- for part in message['content'] %}{{- part['text'] }}{%- endfor %}{%- endif %}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{{- '\n' if message['content'] or not loop.first }}{{- '<tool_call>\n' }}"
    "{{- {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}"
    "{{- '\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '\n</tool_response>' if answers }}"
    "{{- eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of ``VOCAB_SIZE`` entries with merges learned from ``texts``.

    Merges come from ASCII only: an arrow or an emoji then always takes several tokens, so that a stream of the demo
    model shows whether somebody cuts characters in half.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator((text.encode("ascii", "ignore").decode() for text in texts), trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
