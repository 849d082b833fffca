"""The tokenizer of a folder: no code of the folder's runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import tiny_models

from workers.server.tokenizer import TokenizerError, load

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path) -> Path:
    tiny_models.tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is even asked: transformers would, and takes the answer from whatever stdin is."""
    folder, ran = write(tmp_path), tmp_path / "ran"
    (folder / "evil.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast as Tokenizer\n"
    )
    edit(folder / "config.json", "llama", "vit")
    config = folder / "tokenizer_config.json"
    auto_map = {"auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}, "tokenizer_class": "Evil"}
    config.write_text(json.dumps(json.loads(config.read_text()) | auto_map))
    monkeypatch.setattr("builtins.input", lambda _: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(TokenizerError, match=r"custom code") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    assert not ran.exists()
