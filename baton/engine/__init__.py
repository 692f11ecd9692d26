"""The engine of one worker: scheduler, block manager, step loop. Knows no torch and no network."""
