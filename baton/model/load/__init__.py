"""From a model folder to modules that are ready to run, or a refusal that says why."""
