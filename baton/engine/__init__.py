"""One worker's brain: scheduler, block manager and step loop. Torch lives in `model/` only."""
