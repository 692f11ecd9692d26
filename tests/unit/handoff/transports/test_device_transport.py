import pytest

from baton.engine.protocol.messages import Command
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Pages
from baton.handoff.transports.device_transport import CoreReads, DeviceReceiver, DeviceSender
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import SPEC


@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_device_pools_name_single_layers(num_layers: int) -> None:
    assert [len(layers) for layers in DeviceSender(SPEC, 1).layer_groups] == [1, 1, 1]
    commands: list[Command] = []
    delivered: list[Pages | BadBlocks] = []
    frame = handoff_pb2.PrefillFrame(blocks={"num_layers": num_layers, "num_blocks": 1})
    DeviceSender(SPEC, 1).pack(frame, [3])

    DeviceReceiver(CoreReads(commands.append), 1, SPEC).fetch(frame.blocks, delivered.append)

    (outcome,) = delivered
    assert isinstance(outcome, BadBlocks) == (num_layers > 1)
    assert not commands, "the core is asked when the pages may land"
