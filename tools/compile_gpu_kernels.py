"""Compiles all Triton kernels for a GPU that need not be here, by its compute capability: 90.

Prints one JSON line for each: registers of a thread, bytes spilled, bytes of shared memory. The
interpreter, in which tests run the kernels, takes programs that the compiler does not.
TRITON_INTERPRET must not be set.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from baton.model.gpu.triton.attention_kernels import (
    join_segments_kernel,
    paged_attention_kernel,
    store_kv_kernel,
)
from baton.model.gpu.triton.layer_kernels import (
    add_rms_norm_kernel,
    rotate_store_kernel,
    silu_mul_kernel,
)
from baton.model.gpu.triton.sampling_kernels import forbid_tokens_kernel, sample_rows_kernel

_INDEXES = (
    "slots_ptr",
    "query_starts_ptr",
    "context_lens_ptr",
    "table_starts_ptr",
    "tables_ptr",
    "segment_starts_ptr",
    "segment_seqs_ptr",
    "segment_keys_ptr",
    "settings_ptr",
    "rows_ptr",
    "words_ptr",
)
_OF_LOGITS = {"logits_ptr": "*fp32", "tokens_ptr": "*i64"}
_FLOATS = ("scaling", "softcap", "eps")
_HEAD = {"BLOCK_SIZE": 16, "K_DIM": 128, "V_DIM": 128, "K_PAD": 128, "V_PAD": 128}
_FORM = {"HAS_SINKS": True, "HAS_SOFTCAP": True, "HAS_WINDOW": True, "PRECISION": "ieee"}
_SPLIT = {"GROUP": 4, "SHORT_QUERIES": 4}
_DECODE = {"TILE_ROWS": 16, "TILE_KEYS": 64, "IS_SPLIT": True}
_PREFILL = {
    "GROUP": 4,
    "SHORT_QUERIES": 4,
    "TILE_ROWS": 128,
    "TILE_KEYS": 64,
    "IS_SPLIT": False,
}
_JOIN = {"V_DIM": 128, "V_PAD": 128, "CHUNK": 16}
_ROTATE = {
    "NUM_HEADS": 32,
    "NUM_KV_HEADS": 8,
    "DIM": 128,
    "HALF_PAD": 64,
    "BLOCK_SIZE": 16,
    "TILE_HEADS": 8,
}
# Kernel, constants, warps, stages; as baton/model/gpu/triton/attention_backend.py and
# baton/model/gpu/triton/layers.py launch them for an 8 B model.
CASES: dict[str, tuple[Any, dict[str, Any], int, int]] = {
    "store": (store_kv_kernel, _HEAD, 1, 1),
    "decode": (paged_attention_kernel, _HEAD | _FORM | _SPLIT | _DECODE, 2, 3),
    "prefill": (paged_attention_kernel, _HEAD | _FORM | _PREFILL, 8, 3),
    "join": (join_segments_kernel, _SPLIT | _JOIN, 4, 1),
    "norm": (add_rms_norm_kernel, {"HAS_RESIDUAL": True, "SIZE_PAD": 4096}, 8, 1),
    "gate": (silu_mul_kernel, {"SIZE_TILE": 4096}, 4, 1),
    "rotate": (rotate_store_kernel, _ROTATE | {"HAS_NORM": True}, 4, 1),
    "sample": (sample_rows_kernel, {"HAS_LIMITS": False, "TILE": 4096}, 16, 3),
    "sample, limits": (sample_rows_kernel, {"HAS_LIMITS": True, "TILE": 4096}, 16, 3),
    "forbid": (forbid_tokens_kernel, {"TILE_WORDS": 128}, 4, 3),
}


def main(capability: int) -> None:
    for line in compile_all(GPUTarget("cuda", capability, 32)):
        print(json.dumps(line), flush=True)


def compile_all(target: GPUTarget) -> Iterator[dict[str, Any]]:
    """The resources of each kernel on that GPU. Raises the compiler's own errors."""
    for name, (kernel, constants, num_warps, num_stages) in CASES.items():
        names = list(kernel.arg_names)
        source = ASTSource(
            fn=kernel,
            signature={name: _type(name, constants) for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if _is_aligned(n)},
        )
        options = {"num_warps": num_warps, "num_stages": num_stages}
        if num_warps == 16:  # as baton/model/gpu/triton/sampling.py
            options["maxnreg"] = 128
        compiled = triton.compile(source, target=target, options=options)
        used = _assembled(compiled.asm["ptx"])
        yield {"kernel": name, **used, "shared_bytes": compiled.metadata.shared}


def _type(name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if not name.endswith("_ptr"):
        return "fp32" if name in _FLOATS else "i32"
    if name == "rows_ptr" and "HAS_RESIDUAL" in constants:
        return "*bf16"
    if name in _INDEXES:
        return "*i32"
    if name in _OF_LOGITS:
        return _OF_LOGITS[name]
    is_partial = constants.get("IS_SPLIT", True) and name in ("partials_ptr", "stats_ptr")
    return "*fp32" if is_partial else "*bf16"


def _is_aligned(name: str) -> bool:
    """True for pointers and strides: they are multiples of 16 in all common models."""
    return name.endswith("_ptr") or "stride" in name or name == "size"


def _assembled(ptx: str) -> dict[str, int]:
    found = re.search(r"\.target (sm_(\d+)\w*)", ptx)
    assert found is not None
    name = "ptxas-blackwell" if int(found[2]) >= 100 else "ptxas"
    assembler = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [assembler, "-v", f"-arch={found[1]}", source, "-o", source.with_suffix(".bin")]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spilled = re.search(r"(\d+) bytes spill stores", report)
    assert registers is not None
    assert spilled is not None
    return {"registers": int(registers[1]), "spilled_bytes": int(spilled[1])}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
