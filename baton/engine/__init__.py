"""One worker's brain: scheduler, block manager and step loop. Knows no torch and no network."""
