"""OpenAI's role ``developer`` and templates of models that have never heard of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from baton_serve.core.protocol.openai.messages import Message
from baton_serve.workers.text.tokenizer import load

WORDS = ["system", "developer", "user", "be", "brief", "hi"]
#: As Qwen's and others': what it has no branch for it leaves out.
OLD = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }} {{ m.content }} {% endif %}{% endfor %}"
NEW = OLD.replace("'user'", "'user', 'developer'")


@pytest.mark.parametrize(("template", "role"), [(OLD, "system"), (NEW, "developer")])
async def test_what_a_developer_says_is_not_lost(tmp_path: Path, template: str, role: str) -> None:
    fast = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="hi"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    saved = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="hi", chat_template=template)
    saved.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    tokenizer = load(str(tmp_path))
    messages = [Message(role="developer", content="be brief"), Message(role="user", content="hi")]
    assert tokenizer.decode(await tokenizer.encode_chat(messages, 100)).split()[:3] == [role, "be", "brief"]
    tokenizer.close()
