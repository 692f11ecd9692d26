"""Endpoints that vLLM has beside OpenAI's."""
