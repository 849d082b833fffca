from __future__ import annotations

from baton_serve.core.process.child_secrets import GIVEN, SECRETS, environ_for
from baton_serve.core.process.settings import SECRET


def test_every_secret_setting_has_a_kind_of_process_that_is_given_it() -> None:
    given = frozenset().union(*GIVEN.values())
    assert {f"BATON_{name.upper()}" for name in SECRET} <= given
    assert {f"BATON_{name.upper()}_FILE" for name in SECRET} <= given
    assert given <= SECRETS


def test_variables_that_are_no_secrets_stay() -> None:
    environ = dict.fromkeys(SECRETS, "it") | {"PATH": "/bin", "BATON_LOG_LEVEL": "debug"}
    assert environ_for("helper", environ) == {"PATH": "/bin", "BATON_LOG_LEVEL": "debug"}
    assert set(environ_for("worker", environ)) >= {"BATON_INTERNAL_TOKEN", "BATON_REDIS_PASSWORD_FILE", "HF_TOKEN"}
