"""The tokenizer of a folder: what its fingerprint tells apart, and that no code of the folder's runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_serve.workers.text.tokenizer import TokenizerError, load
from tests.kits import tiny_models


def write(folder: Path) -> Path:
    tiny_models.tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@dataclass(frozen=True)
class Change:
    """Of one file in the folder."""

    file: str
    old: str
    new: str


@pytest.mark.parametrize(
    "change",
    [
        Change("tokenizer.json", '"add_prefix_space": false', '"add_prefix_space": true'),
        Change("tokenizer.json", '"unk_token": null', '"unk_token": "a"'),
        Change("chat_template.jinja", "[assistant]", "[the assistant]"),
        Change("config.json", "1", "[1, 7]"),
        Change("tokenizer_config.json", tiny_models.EOS, tiny_models.BOS),
    ],
    ids=lambda change: change.file,
)
def test_whatever_changes_text_or_tokens_changes_the_fingerprint(change: Change, tmp_path: Path) -> None:
    folder = write(tmp_path)
    original = load(str(folder)).fingerprint
    assert load(str(folder)).fingerprint == original
    edit(folder / change.file, change.old, change.new)
    assert load(str(folder)).fingerprint != original


def test_how_the_file_is_written_does_not_matter(tmp_path: Path) -> None:
    folder = write(tmp_path)
    original = load(str(folder)).fingerprint
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=1))
    assert load(str(folder)).fingerprint == original


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


@pytest.mark.parametrize("text", ['{"a": ', "[1]"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_no_json_object_is_refused_in_one_line(file: str, text: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(TokenizerError, match=r"^cannot load a tokenizer from ") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    assert file in str(caught.value) or file.startswith("tokenizer"), "these are read by a library alone"


@pytest.mark.parametrize("ends", ["x", ["x"], {}, [1, [2]], 1.5])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_ends_that_are_no_tokens_are_refused(file: str, ends: object, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / file).write_text(json.dumps({"model_type": "llama", "eos_token_id": ends}))
    with pytest.raises(TokenizerError, match="cannot load a tokenizer from"):
        load(str(folder))


def test_an_end_of_minus_one_stands_for_none(tmp_path: Path) -> None:
    """Else it would be taken for a first token that P did not sample."""
    folder = write(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, -1]}))
    assert -1 not in load(str(folder)).eos_token_ids


def test_a_number_without_end_is_one(tmp_path: Path) -> None:
    """Python writes such into the config of a model, though JSON has none."""
    folder = write(tmp_path)
    edit(folder / "config.json", '"llama"', '"llama", "limit": Infinity')
    assert load(str(folder)).eos_token_ids >= {1}
