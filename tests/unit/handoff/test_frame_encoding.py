import pytest

from baton.handoff.frame_encoding import SERVICE, encode
from baton.wire.v1 import handoff_pb2


@pytest.mark.parametrize("num_bytes", [1, 100, 127, 128, 16_383, 16_384, 1_000_000])
def test_a_frame_with_pages_is_read_as_the_same_message(num_bytes: int) -> None:
    frame = handoff_pb2.PrefillFrame()
    frame.blocks.xfer_id = 2**40
    frame.blocks.layer = 7
    frame.blocks.capability = b"c" * 16
    frame.blocks.checksum = 5
    frame.blocks.data = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
    sent = handoff_pb2.PrefillFrame()
    sent.CopyFrom(frame)

    assert handoff_pb2.PrefillFrame.FromString(encode(frame)) == sent


def test_every_other_frame_is_protobufs_own() -> None:
    reference = handoff_pb2.PrefillFrame(blocks={"xfer_id": 3, "pool_ref": {"block_ids": [1, 2]}})
    commit = handoff_pb2.PrefillFrame(commit={"xfer_id": 3})

    assert encode(reference) == reference.SerializeToString()
    assert encode(commit) == commit.SerializeToString()


def test_the_service_has_the_name_in_the_proto() -> None:
    assert handoff_pb2.DESCRIPTOR.services_by_name["PrefillWorker"].full_name == SERVICE
