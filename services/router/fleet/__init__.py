"""The workers as they report themselves: their load, health, speeds, caches and slot leases."""
