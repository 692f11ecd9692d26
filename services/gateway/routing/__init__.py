"""Which worker a request goes to: routers, models, the fallback picker, crash records."""
