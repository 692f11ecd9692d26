"""One step of the engine: schedule, build the batch, commit what the model returned."""
