"""On PYTHONPATH, this file hides from vLLM what the CPU has beyond `BATON_CPU_ISA`.

Python imports it first of all. vLLM asks torch for instruction sets and takes its kernels by the
answers; what oneDNN and torch use themselves, variables of theirs decide.
"""

import os

import torch

torch.cpu._is_amx_tile_supported = lambda: False
if os.environ.get("BATON_CPU_ISA") == "avx2":
    torch.cpu._is_avx512_supported = lambda: False
    torch.cpu._is_avx512_bf16_supported = lambda: False
