"""The command line as a person meets it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from baton_serve.baton.cli import OPERATOR, PROCESSES, main
from baton_serve.baton.config.sections import COMMANDS, MODELS, settings_model
from baton_serve.core.process.settings import HIDDEN

ROOT = Path(__file__).parents[2]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in (*PROCESSES, *OPERATOR, "settings", "version"))


def test_every_operator_command_has_its_place_in_the_reference() -> None:
    assert COMMANDS["admin"] == tuple(OPERATOR)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == version("baton-serve")


def test_version_as_an_option_says_what_it_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"baton {version('baton-serve')} (Python {platform.python_version()}, {platform.system()} ")
    assert line.endswith(", compiled)") == (os.environ.get("BATON_COMPILED") == "1")


@pytest.mark.parametrize(
    ("command", "section"), [*((name, name) for name in PROCESSES), *((name, "admin") for name in OPERATOR)]
)
def test_help_shows_every_setting_with_variable_and_default(
    command: str, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, info in settings_model(section).model_fields.items():
        flag = "--" + name.replace("_", "-")
        if name in HIDDEN:
            assert flag not in shown
            continue
        assert f"{flag} " in shown or f"{flag}, " in shown
        assert info.description, f"{section}.{name} has no description"
        # Lines are broken at hyphens too.
        assert "".join(info.description.split()) in shown.replace(" ", "")
    assert "env: BATON_ADMIN_TOKEN" in shown if section == "admin" else "env: BATON_REDIS_URL" in shown


def test_help_repeats_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("BATON_INTERNAL_TOKEN", "BATON_ADMIN_TOKEN", "BATON_API_KEYS", "BATON_REDIS_URL"):
        monkeypatch.setenv(name, "sesame")
    main(["router", "--help"])
    assert "sesame" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["up", "--prot", "1"], "No such option '--prot'"),
        (["upp"], "No such command 'upp'"),
        (["up", "--port", "x"], "--port: input should be a valid integer"),
        (["up", "--port", "70000"], "--port: input should be less than or equal to 65535 (got '70000')"),
        (["up", "--host", "[::1"], "host [::1 is neither a name nor an IP address"),
        (["router", "--host", "a b"], "host a b is neither a name nor an IP address"),
        (
            ["router", "--prefill", "http://u:sesame@h:1"],
            "--prefill: worker addresses are host:port, http(s)://host:port or vllm+http(s)://host:port (got ['http://...@h:1'])",
        ),
        (
            ["requests", "--url", "http://u:ses@me@h:1"],
            "--url: the router's address is http(s)://host:port (got 'http://...@h:1')",
        ),
        (["up", "--host", "0.0.0.0"], "host 0.0.0.0 is not a loopback address"),
        (["up", "--redis-url", ""], "--redis-url: "),
        (["worker"], "--model is required"),
        (["worker", "--model", "m", "--role", "cook"], "--role: input should be 'prefill', 'decode' or 'both'"),
        (["up", "--config", "/nowhere.yaml"], "cannot read /nowhere.yaml: No such file or directory"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"baton: {line}")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["up", "worker"])
def test_a_missing_model_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--port", "0", "--model", "/nonexistent"]) == 1
    assert capsys.readouterr().err == "baton: there is no model at /nonexistent\n"


def test_the_flag_of_a_list_is_taken_as_often_as_it_is_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").touch()
    given = ["--lora", f"a={tmp_path}", "--lora", f"b={tmp_path}/b"]
    assert main(["worker", "--model", "/nonexistent", *given]) == 1
    assert capsys.readouterr().err == f"baton: there is no adapter b in {tmp_path}/b: it has no adapter_config.json\n"
    assert main(["worker", "--model", "m", *given[:2], *given[:2]]) == 2
    assert "--lora: there are two adapters named a" in capsys.readouterr().err


def test_the_reference_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    shown = capsys.readouterr().out
    for section in MODELS:
        for name in settings_model(section).model_fields:
            assert name in HIDDEN or f"`--{name.replace('_', '-')}`" in shown


def test_the_page_of_settings_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    page = (ROOT / "docs" / "settings.md").read_text()
    assert capsys.readouterr().out == page, "run: .venv/bin/baton settings > docs/settings.md"
