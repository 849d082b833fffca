"""Where settings come from, and what is said about wrong ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field, SecretStr, ValidationError, model_validator

from baton_serve.baton.config.configuration import OF_TOOLS, ConfigurationError, Document, load
from baton_serve.baton.config.sources import read_document, read_secret_files
from baton_serve.core.process.settings import ProcessSettings
from baton_serve.router.settings import RouterSettings


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class SampleSettings(ProcessSettings):
    section: ClassVar[str] = "sample"

    size: int = Field(..., ge=1, description="Size in bytes.")
    colour: Colour = Field(Colour.RED, description="Colour.")
    names: tuple[str, ...] = Field((), description="Names.")
    api_keys: tuple[SecretStr, ...] = Field((), description="Keys.")
    fast: bool = Field(False, description="Fast.")

    @model_validator(mode="after")
    def check(self) -> SampleSettings:
        if self.size == 13:
            raise ValueError("13 is unlucky")
        return self


def build(
    flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, **sections: dict[str, Any]
) -> SampleSettings:
    return load(SampleSettings, flags or {}, environ or {}, Document("baton.yaml", sections))


def problems(*args: Any, **sections: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        build(*args, **sections)
    return error.value.problems


def test_flag_then_environment_then_file_then_default() -> None:
    sections = {"sample": {"size": 1, "log_level": "debug"}, "shared": {"log_level": "error"}}
    environ = {"BATON_SAMPLE_SIZE": "2", "BATON_LOG_LEVEL": "warning"}
    assert build({"size": "3"}, environ, **sections).size == 3
    assert build({}, environ, **sections).size == 2
    assert build({}, {}, **sections).size == 1
    assert build({}, environ, **sections).log_level == "warning"
    assert build({}, {}, **sections).log_level == "debug"
    assert build({}, {}, sample={"size": 1}, shared={"log_level": "error"}).log_level == "error"
    assert build({"size": "1"}).log_level == "info"


def test_only_the_command_line_takes_values_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIZE", "size", "LOG_LEVEL", "BATON_LOG_LEVEL", "BATON_SAMPLE_SIZE", "BATON_SAMPLE_NAMES"):
        monkeypatch.setenv(name, "7")
    assert SampleSettings(size=8) == build({"size": "8"})
    assert SampleSettings(size=8).log_level == "info"
    with pytest.raises(ValidationError, match="size"):
        SampleSettings.model_validate({})


def test_text_becomes_what_the_setting_is() -> None:
    settings = build({"size": "8", "names": "a, b,", "colour": "blue"}, {"BATON_SAMPLE_FAST": "yes"})
    assert (settings.size, settings.names, settings.colour, settings.fast) == (8, ("a", "b"), Colour.BLUE, True)
    assert build({"size": "8"}, sample={"names": ["x,y", "z"]}).names == ("x,y", "z")


def test_an_empty_variable_is_none() -> None:
    assert build({"size": "8"}, {"BATON_SAMPLE_COLOUR": "", "BATON_INTERNAL_TOKEN": ""}).colour is Colour.RED


@pytest.mark.parametrize(
    ("flags", "environ", "sections", "line"),
    [
        ({"size": "x"}, {}, {}, "--size: input should be a valid integer"),
        ({}, {"BATON_SAMPLE_SIZE": "0"}, {}, "BATON_SAMPLE_SIZE: input should be greater than or equal to 1 (got '0')"),
        ({}, {}, {"sample": {"size": -1}}, "baton.yaml: sample.size: input should be greater than or equal to 1"),
        ({}, {}, {}, "--size is required (or BATON_SAMPLE_SIZE, or sample.size in the configuration file)"),
        ({"size": "1", "colour": "pink"}, {}, {}, "--colour: input should be 'red' or 'blue' (got 'pink')"),
        ({"size": "13"}, {}, {}, "13 is unlucky"),
        (
            {"size": "1"},
            {},
            {"sample": {"names": "a"}},
            "baton.yaml: sample.names: input should be a list, as in [a, b] (got 'a')",
        ),
        ({"size": "1"}, {}, {"sample": {"sise": 1}}, "baton.yaml: unknown key 'sample.sise'; did you mean 'size'?"),
        (
            {"size": "1"},
            {"BATON_SAMPLE_COLOR": "red"},
            {},
            "unknown environment variable BATON_SAMPLE_COLOR; did you mean 'BATON_SAMPLE_COLOUR'?",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_where(
    flags: dict[str, Any], environ: dict[str, str], sections: dict[str, Any], line: str
) -> None:
    (problem,) = problems(flags, environ, **sections)
    assert problem.startswith(line)
    assert "\n" not in problem


@pytest.mark.parametrize("name", OF_TOOLS)
def test_a_variable_of_a_tool_is_no_setting_and_may_be_exported(name: str) -> None:
    assert build({"size": "3"}, {name: "1"}).size == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BATON_API_KEY", "BATON_API_KEYS"),
        ("BATON_INTERNAL_TOKN", "BATON_INTERNAL_TOKEN"),
        ("BATON_INTERNAL_TOKN_FILE", "BATON_INTERNAL_TOKEN_FILE"),
        ("BATON_REDIS_ULR", "BATON_REDIS_URL"),
        ("BATON_ROUTR_PORT", "BATON_ROUTER_PORT"),
        ("BATON_WORKER_INTERNAL_PORT_", "BATON_WORKER_INTERNAL_PORT"),
        ("BATON_MODEL", ""),
        ("BATON_ROUTER_PORT_FILE", "BATON_ROUTER_PORT"),
        ("BATON_SAMPLE_SIZE_PORT_X", "BATON_SAMPLE_SIZE"),
    ],
)
def test_a_variable_that_no_process_knows_is_refused(name: str, meant: str) -> None:
    (problem,) = problems({"size": "1"}, {name: "sesame"})
    assert problem.startswith(f"unknown environment variable {name}")
    assert meant in problem and "sesame" not in problem


def test_variables_of_other_processes_are_known() -> None:
    others = {"BATON_CONFIG": "/etc/baton.yaml", "BATON_WORKER_ROLE": "decode", "BATON_UP_PREFILL": "2"}
    assert build({"size": "1"}, {**others, "BATON_ADMIN_TOKEN_FILE": "/run/token"}).size == 1


def test_every_problem_has_a_line() -> None:
    assert len(problems({"size": "x", "colour": "pink"})) == 2


def test_secrets_are_never_repeated() -> None:
    lines = problems(
        {"size": "1"}, sample={"internal_token": ["sesame"], "redis_url": ["sesame"], "api_keys": "sesame"}
    )
    assert len(lines) >= 2
    assert "sesame" not in "".join(lines)
    settings = build({"size": "1"}, {"BATON_REDIS_URL": "redis://:sesame@h", "BATON_INTERNAL_TOKEN": "sesame"})
    assert "sesame" not in repr(settings)


def test_variables_that_kubernetes_adds_are_left_alone() -> None:
    links = {
        "BATON_SERVICE_HOST": "10.0.0.1",
        "BATON_SERVICE_PORT_HTTP": "80",
        "BATON_REDIS_PORT_6379_TCP": "tcp://10.0.0.1:6379",
        "BATON_ROUTER_PORT": "tcp://10.0.0.1:80",
        "BATON_SAMPLE_SERVICE_HOST": "10.0.0.1",
        "BATON_SAMPLE_PORT_80_TCP_ADDR": "10.0.0.1",
        "BATON_SAMPLE_PORT": "tcp://10.0.0.1:80",
    }
    assert build({}, links, sample={"size": 5}).size == 5


def test_secrets_from_files(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame\n")
    variable = "BATON_INTERNAL_TOKEN"
    assert read_secret_files({variable + "_FILE": str(token)})[variable] == "sesame"
    token.write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        read_secret_files({variable + "_FILE": str(token)})
    with pytest.raises(ConfigurationError, match=r"cannot read .*nowhere: No such file"):
        read_secret_files({variable + "_FILE": "/nowhere"})
    with pytest.raises(ConfigurationError, match="both set"):
        read_secret_files({variable + "_FILE": str(token), variable: "x"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("routr:\n  port: 1\n", "unknown key 'routr'; the sections are shared, router, worker, up, admin"),
        ("shared:\n  port: 1\n", "unknown key 'shared.port'"),
        ("shared:\n  redis: 1\n", "unknown key 'shared.redis'; did you mean 'redis_url'?"),
        ("- a\n", "must be a mapping of sections"),
        ("router: 1\n", "section 'router' must be a mapping of settings"),
        ("router: {internal_token: sesame\n", "line 2: not valid YAML"),
        ("router:\n  port: 1\nrouter:\n  host: a\n", "line 3: the key 'router' is there twice"),
        ("router:\n  port: 1\n  port: 2\n", "line 3: the key 'port' is there twice"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "baton.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        read_document(str(path))
    (problem,) = error.value.problems
    assert problem.startswith(str(path))
    assert problem.endswith(line)
    assert "sesame" not in problem


def test_a_file_with_keys_may_have_one_in_each_line(tmp_path: Path) -> None:
    keys = tmp_path / "api-keys"
    keys.write_text("first\nsecond\n\n  third , fourth\n")
    environ = read_secret_files({"BATON_ROUTER_HOST": "0.0.0.0", "BATON_API_KEYS_FILE": str(keys)})
    settings = load(RouterSettings, {}, environ, Document())
    assert [key.get_secret_value() for key in settings.api_keys] == ["first", "second", "third", "fourth"]


def test_commas_without_values_are_no_list() -> None:
    """Without keys everybody would be let in."""
    with pytest.raises(ConfigurationError) as error:
        load(RouterSettings, {"api_keys": " , "}, {}, Document())
    assert "api" in str(error.value)


def test_a_list_comes_in_one_flag_or_in_several() -> None:
    for given in (("a,b", "c"), ("a", "b", "c"), "a,b,c"):
        assert build({"size": "1", "names": given}).names == ("a", "b", "c")
    environ = {"BATON_SAMPLE_NAMES": "d,e"}
    assert build({"size": "1", "names": ()}, environ).names == ("d", "e"), "the flag was not given"
    assert build({"size": "1", "names": ("",)}, environ).names == (), "it was given, and empty"
    assert build({"size": "1"}, sample={"names": ["a,b", "c"]}).names == ("a,b", "c")


def test_a_merged_section_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "baton.yaml"
    path.write_text("router: &a {port: 1, host: h}\nworker:\n  <<: *a\n  port: 2\n")
    assert read_document(str(path)).sections["worker"] == {"port": 2, "host": "h"}


def test_an_empty_file_and_empty_sections_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "baton.yaml"
    path.write_text("")
    assert read_document(str(path)).sections == {}
    path.write_text("router:\n")
    assert read_document(str(path)).sections == {"router": {}}
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file"):
        read_document(str(tmp_path / "other.yaml"))
