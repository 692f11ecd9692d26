"""The choice of a request's workers: routers, models, the fallback picker, crash records."""
