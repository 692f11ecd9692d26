"""How a transfer ends, and why blocks and frames are refused: labels of metrics, and log values."""

from enum import StrEnum


class TransferOutcome(StrEnum):
    """How a transfer ended; a receiver knows the first two alone."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"
    LOST = "lost"
    EXPIRED = "expired"


class BadBlocksCause(StrEnum):
    """Why a frame of blocks, or the count of all blocks, is wrong."""

    CHECKSUM = "checksum"
    TRANSPORT = "transport"
    SIZE = "size"
    PAYLOAD = "payload"
    LAYER = "layer"
    HEADS = "heads"
    RANGE = "range"
    COUNT = "count"


class DropCause(StrEnum):
    """Why a frame is dropped; TRANSFER: its transfer is over."""

    TRANSFER = "transfer"
    EPOCH = "epoch"
    CAPABILITY = "capability"
    REPEAT = "repeat"
    UNKNOWN = "unknown"
