"""The demo model: corpus and training script. Repository-only, not packaged."""
