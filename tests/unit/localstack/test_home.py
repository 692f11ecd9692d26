import os
import random
import socket
import stat
from pathlib import Path

import pytest

from baton.localstack.home import AlreadyRunning, Home, StackState
from baton.localstack.models import ModelNotFound, resolve
from baton.localstack.ports import free_ports


def test_a_stack_is_found_from_any_folder_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATON_HOME", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "elsewhere" / ".venv"))
    below = tmp_path / "checkout" / "docs" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert Home.found() is None
    assert Home.of_environment().root == below / ".baton"
    # The folder of another program is not a stack's.
    (tmp_path / "checkout" / ".baton").mkdir()
    assert Home.found() is None
    Home(tmp_path / "checkout" / ".baton").create()
    assert Home.of_environment().root == tmp_path / "checkout" / ".baton"


def test_far_from_every_stack_that_of_the_environments_checkout_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATON_HOME", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "checkout" / ".venv"))
    Home(tmp_path / "checkout" / ".baton").create()
    monkeypatch.chdir("/")
    assert Home.of_environment().root == tmp_path / "checkout" / ".baton"


def test_a_folder_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    home = Home(tmp_path / "b")
    home.create()
    lock = home.lock()
    with pytest.raises(AlreadyRunning, match="already runs"):
        home.lock()
    lock.close()
    home.lock().close()


def test_state_counts_only_while_its_supervisor_holds_the_folder(tmp_path: Path) -> None:
    home = Home(tmp_path)
    # The pid of a process that lives and is not a supervisor: it must not be taken for one.
    left_behind = StackState(os.getpid(), "http://x/v1", True, {"gateway": {"pid": 1}})
    home.write_state(left_behind)
    assert home.read_state() is None
    with home.lock():
        assert home.read_state() == left_behind
        home.write_state(None)
        assert home.read_state() is None


def test_dev_env_is_for_the_owner_only_and_can_be_read_back(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write_dev_env({"BASE_URL": "http://127.0.0.1:1/v1", "API_KEY": "bt-a=b"})
    assert home.read_dev_env() == {"BASE_URL": "http://127.0.0.1:1/v1", "API_KEY": "bt-a=b"}
    assert stat.S_IMODE(home.dev_env.stat().st_mode) == 0o600


def test_free_ports_skip_taken_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("baton.localstack.ports._FIRST", port)
        monkeypatch.setattr("baton.localstack.ports._LAST", port + 20)
        ports = free_ports(3, random.Random(1))
    assert len(set(ports)) == 3
    assert port not in ports


@pytest.mark.parametrize("name", ["no-such-folder", "./nowhere", "a/b/c"])
def test_a_model_that_is_neither_folder_nor_hub_id_is_named(name: str) -> None:
    with pytest.raises(ModelNotFound, match=name):
        resolve([name])


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="safetensors"):
        resolve([str(tmp_path)])


def test_two_models_need_two_names(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        folder = tmp_path / parent / "m"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "x.safetensors").write_bytes(b"12345")
    assert resolve([str(tmp_path / "a" / "m")])[0].weight_bytes == 5
    with pytest.raises(ModelNotFound, match="'m'"):
        resolve([str(tmp_path / "a" / "m"), str(tmp_path / "b" / "m")])
