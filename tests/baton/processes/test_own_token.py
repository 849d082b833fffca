"""The file with the admin token that ``baton up`` makes: who reads it, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_serve.baton.processes.own_token import kept_token, own_token, token_path
from baton_serve.baton.processes.private_folder import PrivateFolderError, private_folder

URL = "http://127.0.0.1:8123"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def path(environ: dict[str, str]) -> Path:
    return token_path(private_folder(environ), 8123)


def test_it_is_there_for_this_user_alone_while_it_is_kept(environ: dict[str, str], path: Path) -> None:
    with kept_token(path, "sesame"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for host in ("127.0.0.1", "localhost", "[::1]"):
            assert own_token(f"http://{host}:8123", environ) == "sesame"
    assert not path.parent.exists()
    assert own_token(URL, environ) is None


def test_it_is_for_its_port_on_this_machine_only(environ: dict[str, str], path: Path) -> None:
    with kept_token(path, "sesame"), kept_token(token_path(path.parent, 80), "another"):
        assert own_token("http://10.0.0.1:8123", environ) is None
        assert own_token("http://127.0.0.1:8124", environ) is None
        assert own_token("http://127.0.0.1", environ) == "another"


def test_what_a_killed_one_left_is_replaced_and_what_a_later_one_has_stays(environ: dict[str, str], path: Path) -> None:
    with kept_token(path, "old"):
        with kept_token(path, "new"):
            assert own_token(URL, environ) == "new"
        with kept_token(path, "newer"):
            path.write_text("of another")
        assert own_token(URL, environ) == "of another"


def test_a_file_that_others_could_have_written_or_read_is_not_used(environ: dict[str, str], path: Path) -> None:
    with kept_token(path, "sesame"):
        path.chmod(0o640)
        assert own_token(URL, environ) is None
        path.chmod(0o600)
        assert own_token(URL, environ) == "sesame"
        moved = path.rename(path.with_suffix(".moved"))
        path.symlink_to(moved)
        assert own_token(URL, environ) is None
        path.unlink()
        moved.rename(path)


def test_a_folder_that_others_may_enter_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    with pytest.raises(PrivateFolderError, match="mode 0700"), kept_token(path, "sesame"):
        pass
