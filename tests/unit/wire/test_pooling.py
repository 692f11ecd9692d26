"""What the files of a model folder say about its vectors."""

import json

import pytest

from baton.wire.pooling import Pooling, UnservedPooling, read_pooling

KINDS = ("Transformer", "Pooling", "Normalize")


def write(folder, settings, kinds=KINDS, **config):
    modules = [{"type": f"a.b.{kind}", "path": f"1_{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def test_a_folder_without_modules_has_a_model_that_generates_text(tmp_path):
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, "last"),
    ],
)
def test_the_pooling_is_read_as_old_and_new_versions_write_it(tmp_path, settings, kind):
    write(tmp_path, settings)
    assert read_pooling(tmp_path) == Pooling(kind, 8, normalizes=True)


def test_vectors_can_be_shortened_where_the_configuration_says_so(tmp_path):
    write(tmp_path, {"pooling_mode": "mean"}, KINDS[:2], matryoshka_dimensions=[2, 4])
    assert read_pooling(tmp_path) == Pooling("mean", 8, can_shorten=True, lengths=(2, 4))


@pytest.mark.parametrize(
    ("settings", "kinds", "reason"),
    [
        ({"pooling_mode_cls_token": True}, KINDS, "pooling is pooling_mode_cls_token"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, KINDS, "and"),
        ({}, KINDS, "pooling is none"),
        ({"pooling_mode": "mean"}, (*KINDS, "Dense"), "has Dense"),
        ({"pooling_mode": "mean"}, ("Transformer",), "has no Pooling"),
    ],
)
def test_what_is_not_served_is_named(tmp_path, settings, kinds, reason):
    write(tmp_path, settings, kinds)
    with pytest.raises(UnservedPooling, match=reason):
        read_pooling(tmp_path)


def test_settings_in_a_folder_elsewhere_are_not_read(tmp_path):
    write(tmp_path, {"pooling_mode": "mean"})
    path = tmp_path / "modules.json"
    path.write_text(path.read_text().replace("1_Pooling", "../outside"))
    with pytest.raises(UnservedPooling, match="a folder elsewhere"):
        read_pooling(tmp_path)
