"""vLLM's EngineCore in a worker's core process: commands of the front in, its events out.

The only package that imports vLLM. It runs in an environment that has vLLM, and needs of this
repository what stands below it: the engine's protocol, the wire, and the sampling of the model.
"""
