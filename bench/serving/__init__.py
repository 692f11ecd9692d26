"""The whole stack under load: split, aggregated and automatic; servers of peers."""
