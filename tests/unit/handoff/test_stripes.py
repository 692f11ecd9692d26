from baton.handoff.stripes import MAX_STRIPE_BYTES, layer_groups
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

PEER = handoff_pb2.DecodeHello(takes_stripes=True)
# A page of 64 KiB.
LAYER = (8, 128, 128, "bfloat16")


def test_layers_go_together_up_to_the_longest_stripe() -> None:
    spec = KVSpec.of_layers(16, [LAYER] * 40)

    groups = layer_groups(spec, PEER)

    assert groups == [range(16), range(16, 32), range(32, 40)]
    assert spec.stripe(groups[0]) == (0, MAX_STRIPE_BYTES)
    assert spec.stripe(groups[2]) == (2 * MAX_STRIPE_BYTES, MAX_STRIPE_BYTES // 2)


def test_layers_of_other_heads_do_not_go_together() -> None:
    spec = KVSpec.of_layers(16, [LAYER, LAYER, (1, 512, 64, "bfloat16"), LAYER])

    assert layer_groups(spec, PEER) == [range(2), range(2, 3), range(3, 4)]


def test_a_peer_that_knows_no_stripes_gets_each_layer_by_itself() -> None:
    spec = KVSpec.of_layers(16, [LAYER] * 3)

    assert layer_groups(spec, handoff_pb2.DecodeHello()) == [range(1), range(1, 2), range(2, 3)]
