"""Stripes: the pages of adjacent layers that a frame carries of each block, as they lie in its row.

The more layers, the fewer and longer copies and the fewer messages. A stripe is no longer than a
page may be, so that it stays in the CPU's cache between a copy and its checksum. Knows no memory.
"""

from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

MAX_STRIPE_BYTES = 2**20


def layers_of(frame: handoff_pb2.Blocks) -> range:
    """Those of the frame's stripes."""
    return range(frame.layer, frame.layer + max(1, frame.num_layers))


def single_layers(spec: KVSpec) -> list[range]:
    """Each layer by itself."""
    return [range(layer, layer + 1) for layer in range(len(spec.layers))]


def layer_groups(spec: KVSpec, hello: handoff_pb2.DecodeHello) -> list[range]:
    """The layers whose pages go together to this peer, in model order; all have equal heads."""
    if not hello.takes_stripes:
        return single_layers(spec)
    groups: list[range] = []
    for layer, shape in enumerate(spec.layers):
        longer = range(groups[-1].start, layer + 1) if groups else range(0)
        is_alike = bool(longer) and spec.layers[layer - 1].num_kv_heads == shape.num_kv_heads
        if is_alike and spec.stripe(longer)[1] <= MAX_STRIPE_BYTES:
            groups[-1] = longer
        else:
            groups.append(range(layer, layer + 1))
    return groups
