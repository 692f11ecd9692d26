"""The oracle of embedding models: the engine's vectors are those of transformers' own states."""

import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from baton.engine.protocol.messages import SamplingParams
from baton.model.cpu.dense import DenseForward
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.self_check import check_model
from baton.model.pooling_runner import TorchPoolingRunner
from baton.testing.tiny_models import make_embedding_model, make_model, make_reranker

POOLINGS = ("lasttoken", "mean_tokens")
# Sizes that the compiled step takes.
WIDE = {"head_dim": 32, "hidden_size": 128}


class Folders:
    """Embedding models, each made and loaded once."""

    def __init__(self, tmp_path_factory) -> None:
        self._make = tmp_path_factory.mktemp
        self._loaded = {}

    def load(self, name, pooling, **changes):
        """The model as the product loads it, and transformers' bare one."""
        key = f"{name}-{pooling}-{sorted(changes)}"
        if key not in self._loaded:
            folder = self._make("embedding") / key
            make_embedding_model(name, folder, pooling, **changes)
            loaded = load_model(str(folder), LoadOptions(dtype="float32"))
            own = transformers.AutoModel.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32
            )
            self._loaded[key] = loaded, own.eval()
        return self._loaded[key]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory)


@torch.inference_mode()
def expected(own, prompt, pooling):
    states = own(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    vector = states[-1] if pooling == "lasttoken" else states.mean(0)
    return torch.nn.functional.normalize(vector, dim=0).numpy()


def request(driver, seq_id, prompt):
    added = driver.request(seq_id, prompt, SamplingParams(max_tokens=1))
    added.pools = True
    return added


def vectors(news):
    found = [pooled for events in news for pooled in events.pooled]
    return {pooled.seq_id: np.frombuffer(pooled.vector, "<f4") for pooled in found}


def check(driver, own, pooling, prompts, first_id=0):
    news = driver.run([request(driver, first_id + i, each) for i, each in enumerate(prompts)])
    found = vectors(news)
    for index, prompt in enumerate(prompts):
        wanted = expected(own, prompt, pooling)
        np.testing.assert_allclose(found[first_id + index], wanted, atol=2e-6)
    return news


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3"])
def test_vectors_in_batches_chunks_and_beside_a_cache_are_transformers_own(
    folders, drive, prompts, name, pooling
):
    loaded, own = folders.load(name, pooling)
    driver = drive(loaded, max_step_tokens=16, runner=TorchPoolingRunner(loaded))
    first = check(driver, own, pooling, prompts)
    again = check(driver, own, pooling, [prompts[0] + [5, 6], prompts[2]], first_id=10)

    assert len({events.step for events in first if events.num_step_tokens}) > 3
    num_cached = [each.num_cached_tokens for events in again for each in events.started]
    assert num_cached == ([32, 16] if pooling == "lasttoken" else [0, 0])
    assert not driver.tokens


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_compiled_step_gives_the_same_vectors(
    compiled_kernels, folders, drive, prompts, pooling, is_deterministic
):
    loaded, own = folders.load("qwen3", pooling, **WIDE)
    runner = TorchPoolingRunner(loaded, is_deterministic=is_deterministic)
    assert isinstance(runner._forward, DenseForward)
    check_model(loaded, runner)
    check(drive(loaded, max_step_tokens=16, runner=runner), own, pooling, prompts)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_sequences_that_wait_for_blocks_get_the_same_vectors(folders, drive, prompts, pooling):
    loaded, own = folders.load("qwen3", pooling)
    driver = drive(loaded, num_blocks=5, max_step_tokens=16, runner=TorchPoolingRunner(loaded))
    check(driver, own, pooling, prompts)


def test_weights_without_an_output_layer_are_served(tmp_path):
    folder = tmp_path / "bare"
    make_embedding_model("llama", folder, "lasttoken")
    bare = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    bare.save_pretrained(folder)
    loaded = load_model(str(folder), LoadOptions(dtype="float32"))
    check_model(loaded, TorchPoolingRunner(loaded))


@pytest.mark.parametrize(
    ("settings", "module", "reason"),
    [
        ({"pooling_mode_cls_token": True}, "Pooling", "pooling is pooling_mode_cls_token"),
        ({"pooling_mode_lasttoken": True}, "Dense", "Dense, no Pooling"),
    ],
)
def test_what_is_not_served_of_an_embedding_model_is_refused_by_name(
    tmp_path, settings, module, reason
):
    folder = tmp_path / "m"
    make_embedding_model("llama", folder, "lasttoken")
    path = folder / "modules.json"
    path.write_text(path.read_text().replace(".Pooling", f".{module}"))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(LoadError, match=reason.partition(",")[0]):
        load_model(str(folder), LoadOptions(dtype="float32"))


def test_logits_that_are_scaled_behind_the_output_layer_are_refused(tmp_path):
    make_embedding_model("granite", tmp_path / "m", "lasttoken")
    with pytest.raises(LoadError, match="changes its logits"):
        load_model(str(tmp_path / "m"), LoadOptions(dtype="float32"))


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_scores_are_those_of_transformers_own_classifier(tmp_path, drive, prompts, name):
    make_reranker(name, tmp_path / "m")
    loaded = load_model(str(tmp_path / "m"), LoadOptions(dtype="float32"))
    runner = TorchPoolingRunner(loaded)
    check_model(loaded, runner)
    driver = drive(loaded, max_step_tokens=16, runner=runner)
    added = [request(driver, index, prompt) for index, prompt in enumerate(prompts)]
    found = vectors(driver.run(added))

    own = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "m", attn_implementation="eager", dtype=torch.float32
    ).eval()
    for index, prompt in enumerate(prompts):
        with torch.inference_mode():
            logit = own(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
        np.testing.assert_allclose(found[index], torch.sigmoid(logit).numpy(), atol=2e-6)


def test_a_score_may_be_the_logit_of_yes_less_that_of_no(tmp_path, drive, prompts):
    folder = tmp_path / "m"
    make_model("qwen3", folder)
    Tokenizer(models.WordLevel({"no": 7, "yes": 9})).save(str(folder / "tokenizer.json"))
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Qwen3ForSequenceClassification"]
    config["classifier_from_token"] = ["no", "yes"]
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_model(str(folder), LoadOptions(dtype="float32"))
    driver = drive(loaded, max_step_tokens=64, runner=TorchPoolingRunner(loaded))
    [score] = vectors(driver.run([request(driver, 0, prompts[0])]))[0]
    with torch.inference_mode():
        logits = own(input_ids=torch.tensor([prompts[0]]), use_cache=False).logits[0, -1]
    assert score == pytest.approx(float(torch.sigmoid(logits[9] - logits[7])), abs=2e-6)


def test_a_classifier_of_several_labels_is_refused(tmp_path):
    make_reranker("qwen3", tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": {"0": "a", "1": "b"}}))
    with pytest.raises(LoadError, match="classifies into 2 labels"):
        load_model(str(tmp_path / "m"), LoadOptions(dtype="float32"))
