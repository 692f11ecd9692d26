"""What `baton up` refuses by a folder's small files, the loader refuses too, and nothing else."""

import re

import pytest
import transformers

from baton.localstack.model_folder import _of_architecture, is_named_by_transformers
from baton.model.load.load_error import LoadError
from baton.model.load.refusal import check_type
from baton.model.load.served_types import ENCODER_TYPES, OWN_ATTENTION_TYPES, RECURRENT_TYPES
from baton.model.transformers_api import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from baton.testing.tiny_models import _SMALL, REFUSED, SERVED


@pytest.mark.parametrize("name", SERVED)
def test_a_served_architecture_passes(name: str) -> None:
    config_class, values = SERVED[name]
    if isinstance(text := values.get("text_config"), dict):
        config = getattr(transformers, config_class)(**values | {"text_config": _SMALL | text})
    else:
        config = getattr(transformers, config_class)(**_SMALL | values)
    assert not list(_of_architecture(config.to_dict()))


@pytest.mark.parametrize("name", ["mamba", "qwen3-next", "qwen3.5", "bert", "t5", "falcon", "lfm2"])
def test_a_refused_architecture_is_refused_at_once(name: str) -> None:
    config_class, values = REFUSED[name][:2]
    config = getattr(transformers, config_class)(**_SMALL | values)
    assert list(_of_architecture(config.to_dict()))


@pytest.mark.parametrize("kind", ["mamba2", "jamba", "rwkv", "gptj", "bloom", "xlnet"])
def test_the_lists_say_what_transformers_classes_say(kind: str) -> None:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
    assert bool(getattr(model_class, "_is_stateful", False)) == (kind in RECURRENT_TYPES)
    has_own = not getattr(model_class, "_supports_attention_backend", False)
    assert kind in RECURRENT_TYPES or has_own == (kind in OWN_ATTENTION_TYPES)


def test_the_types_that_transformers_knows_are_named_in_its_lists() -> None:
    assert all(map(is_named_by_transformers, CONFIG_MAPPING))


@pytest.mark.parametrize(
    ("more", "reason"), [({}, "is unknown to transformers"), ({"auto_map": {}}, "(auto_map)")]
)
def test_a_type_that_transformers_does_not_know_is_refused_at_once(
    more: dict[str, object], reason: str
) -> None:
    config = {"model_type": "llama7", **more}
    (problem,) = _of_architecture(config)
    assert reason in problem
    with pytest.raises(LoadError, match=re.escape(reason)):
        check_type("m", config)


def test_every_listed_type_is_one_of_transformers() -> None:
    known = set(CONFIG_MAPPING)
    assert known >= RECURRENT_TYPES | OWN_ATTENTION_TYPES | ENCODER_TYPES
