"""The real stack under more load than it can serve, from one tenant or several."""
