"""The check before serving: passes what is right in both dtypes, refuses what is wrong."""

import pytest

from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.self_check import check_model
from baton.model.tensors.torch_attention import TorchAttention
from baton.model.torch_runner import TorchRunner


class ForgetfulAttention(TorchAttention):
    """Leaves out one thing that layers ask for."""

    def __init__(self, forgotten: str) -> None:
        super().__init__()
        self.forgotten = forgotten

    def attend(self, layer, query, key, value, form):
        return super().attend(layer, query, key, value, form._replace(**{self.forgotten: None}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_served_architecture_passes(architecture, model_folder, dtype):
    loaded = load_model(str(model_folder(architecture)), LoadOptions(dtype=dtype))
    check_model(loaded, TorchRunner(loaded))


@pytest.mark.parametrize(
    ("name", "forgotten"), [("mistral-window", "sliding_window"), ("gpt-oss", "sinks")]
)
def test_attention_that_means_something_else_is_refused(model_folder, name, forgotten):
    loaded = load_model(str(model_folder(name)), LoadOptions(dtype="float32"))
    with pytest.raises(LoadError, match="does not give the same results"):
        check_model(loaded, TorchRunner(loaded, ForgetfulAttention(forgotten)))


def test_a_model_shorter_than_the_check_is_checked_within_its_length(model_folder):
    options = LoadOptions(dtype="float32", max_model_len=5)
    loaded = load_model(str(model_folder("llama")), options)
    check_model(loaded, TorchRunner(loaded))


def test_a_model_that_fails_in_the_check_is_refused_in_one_line(model_folder, monkeypatch):
    loaded = load_model(str(model_folder("llama")), LoadOptions(dtype="float32"))

    def fail(*_, **__):
        raise RuntimeError("sizes do not match\nat length")

    monkeypatch.setattr(loaded.model, "forward", fail)
    with pytest.raises(LoadError, match=r"^model llama: sizes do not match$"):
        check_model(loaded, TorchRunner(loaded))
