"""What `baton up` runs besides the services: supervisor, Redis, span receiver and store."""
