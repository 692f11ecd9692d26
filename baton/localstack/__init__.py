"""The parts of a local stack besides the services: supervisor, Redis, span receiver and store."""
