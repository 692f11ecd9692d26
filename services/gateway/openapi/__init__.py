"""The description of the API that machines and people read: /openapi.json and /docs."""
