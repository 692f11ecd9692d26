"""Load tests with Locust against Baton, or any server with OpenAI's API and vLLM's extras.

`locustfile` is what Locust loads. Only it, `streaming_user` and `recorder` import Locust, which
patches the whole process for gevent; everything else is plain code that any process may import.
"""
