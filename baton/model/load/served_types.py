"""Which models of transformers can be served, by their names alone. Without torch, so that a folder
is judged before anything that takes seconds is imported.

The lists say of transformers' classes what `refusal.py` asks each: a test compares them.
"""

_RECURRENT = """
    bailing_hybrid bamba deepseek_v4 falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear
    mamba mamba2 nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text
    qwen3_next recurrent_gemma rwkv xlstm zamba zamba2 zaya
"""
_OWN_ATTENTION = """
    big_bird biogpt bloom blt codegen cpmant falcon gpt_neo gpt_neox_japanese gptj
    megatron-bert mpt openai-gpt reformer rembert roformer stablelm xglm xlm xlnet
"""
_ENCODERS = """
    albert bert camembert deberta deberta-v2 distilbert electra ernie modernbert mpnet
    nomic_bert roberta xlm-roberta xlm-roberta-xl xmod
"""
# Chunked layers pass here; the probe refuses those whose chunk is shorter than the context.
SERVED_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
# Types that keep a state beside the keys and values of tokens.
RECURRENT_TYPES = frozenset(_RECURRENT.split())
# Types whose attention cannot be replaced: ALiBi, or kernels of their own.
OWN_ATTENTION_TYPES = frozenset(_OWN_ATTENTION.split())
# Types that read a text in both directions, unless their configuration says is_decoder.
ENCODER_TYPES = frozenset(_ENCODERS.split())
# Quantised weights that nothing here decodes.
UNDECODED_METHODS = ("gptq", "awq")
