"""Trains the bundled demo model from the corpus beside this file: minutes on a GPU, many hours on a CPU.

    python -m tools.demo_model.train --device cuda --processes 14 --out baton/demo_model
    python -m tools.demo_model.train --smoke --out /tmp/demo      # under a minute, checks the script only

Every batch and the learning rate depend on the step alone, never on the clock, so runs repeat on one kind of device.
"""

import argparse
import contextlib
import itertools
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from tools.demo_model.corpus import ENTRIES, SHOWCASE
from tools.demo_model.evaluate import Probe, call_probes, json_probes, off_topic_probes, pick, score
from tools.demo_model.fast import mean_cross_entropy
from tools.demo_model.gate import load_saved
from tools.demo_model.mixture import Batch, Mixture
from tools.demo_model.skills.values import Pieces
from tools.demo_model.sources import build_sampler, word_pieces
from tools.demo_model.templates import Topic, build_topics
from tools.demo_model.tokenizer import BOS, END, MAX_POSITIONS, PAD, VOCAB_SIZE, save_tokenizer

HELD_BACK_FILE = Path(__file__).parents[2] / "tests" / "model" / "demo_model_held_back.json"


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return LlamaForCausalLM(config)


def build_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """3 % warm-up, then a cosine down to 2 % of the peak."""
    warm_up = max(1, int(0.03 * num_steps))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, num_steps - warm_up)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def use_bf16() -> bool:
    """True when the CPU multiplies bf16 in hardware; elsewhere fp32 is faster."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean loss over answer tokens. Right padding needs no mask: attention is causal."""
    ids, wanted = (torch.from_numpy(part).to(model.device, non_blocking=True) for part in batch)
    ids = ids.long()
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    picked = hidden[:, :-1][wanted[:, 1:]]
    logits = functional.linear(picked, model.lm_head.weight)
    return mean_cross_entropy(logits, ids[:, 1:][wanted[:, 1:]])


def train(
    model: LlamaForCausalLM, mixture: Mixture, args: argparse.Namespace, watch: list[Probe]
) -> None:
    """All steps; prints a line of progress now and then, and the share of probes that are right."""
    model.set_attn_implementation("demo_training")
    is_bf16 = args.device == "cuda" or use_bf16()
    autocast = torch.autocast(args.device, torch.bfloat16) if is_bf16 else contextlib.nullcontext()
    # cuDNN's attention prepares itself for every new shape of a batch.
    torch.backends.cuda.enable_cudnn_sdp(False)
    with mixture.batches(args.processes) as batches:
        model.to(args.device)
        optimizer = build_optimizer(model)
        began, tokens = time.monotonic(), 0
        for step, batch in enumerate(itertools.islice(batches, args.steps)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.steps, args.rate)
            with autocast:
                loss = batch_loss(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += batch[0].size
            done = step + 1
            if done % args.report_every == 0 or done == args.steps:
                spent = time.monotonic() - began
                left = spent / done * (args.steps - done)
                print(
                    f"step {done}/{args.steps}  loss {loss.item():.4f}  {tokens / spent:,.0f} tok/s"
                    f"  {spent / 60:.1f} min, {left / 60:.1f} min left",
                    flush=True,
                )
            if done % args.watch_every == 0:
                model.set_attn_implementation("sdpa")
                seen = score(model, mixture.sampler.tokenizer, watch)
                model.set_attn_implementation("demo_training")
                print(f"step {done}: {seen.exact} % of {seen.num} are exact", flush=True)
    model.set_attn_implementation("sdpa")


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Writes weights in bf16, configuration, tokenizer and chat template."""
    out.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config)
    half.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    half = half.to(torch.bfloat16)
    half.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    half.save_pretrained(out)
    save_tokenizer(tokenizer, out)


def rows(probes: list[Probe]) -> list[dict[str, object]]:
    """Probes as the committed test reads them."""
    return [
        {
            "messages": [{"role": each.role, "content": each.text} for each in probe.messages],
            "answer": probe.answer,
        }
        for probe in probes
    ]


def write_held_back(topics: list[Topic], pieces: Pieces) -> None:
    """Held-back prompts, drawn before anything was scored, for the committed test."""
    probes = pick(topics, lambda topic: topic.held_back, 10_000)
    chosen = random.Random(5).sample(probes[: len(topics)], 40)
    by_question = {q: t.answer for t in topics for q in t.trained}
    calls = call_probes(probes, 12, pieces)
    data = {
        "held_back": [{"question": p.question, "answer": p.answer} for p in chosen],
        "showcase": [{"question": q, "answer": by_question[q]} for q in SHOWCASE],
        "off_topic": [{"question": p.question, "answer": p.answer} for p in off_topic_probes(40)],
        "calls": rows([*calls["calls of functions"], *calls["sentences about results"]]),
        "json": rows(json_probes(12, pieces)),
    }
    HELD_BACK_FILE.write_text(json.dumps(data, indent=1) + "\n")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--start", type=Path, help="a folder with weights and tokenizer to go on from"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=0, help="that make batches ahead")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--step-tokens", type=int, default=32_768)
    parser.add_argument("--rate", type=float, default=2e-3, help="the peak learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-every", type=int, default=100)
    parser.add_argument("--watch-every", type=int, default=1500)
    parser.add_argument("--smoke", action="store_true", help="a few steps, no test file")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.step_tokens, args.report_every, args.watch_every = 6, 2048, 2, 4
    return args


def main() -> None:
    args = parse_args()
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    topics = build_topics(ENTRIES, SHOWCASE)
    sampler = build_sampler(topics, args.start)
    model = build_model(sampler.tokenizer)
    if args.start:
        model.load_state_dict(load_saved(args.start, torch.float32, "cpu").state_dict())
    held = pick(topics, lambda topic: topic.held_back, 8 if args.smoke else 64)
    pieces = word_pieces(sampler.tokenizer)
    calls = call_probes(held, len(held), pieces)["calls of functions"]
    watch = [*held, *calls, *json_probes(len(held), pieces)]
    print(
        f"{len(topics)} answers, {sum(len(t.trained) for t in topics)} trained and "
        f"{sum(len(t.held_back) for t in topics)} held-back phrasings, vocabulary "
        f"{sampler.tokenizer.get_vocab_size()}, {sum(p.numel() for p in model.parameters()):,} parameters",
        flush=True,
    )
    began = time.monotonic()
    train(model, Mixture(sampler, args.seed, args.step_tokens), args, watch)
    save(model, sampler.tokenizer, args.out)
    minutes = round((time.monotonic() - began) / 60, 1)
    schedule = {
        "steps": args.steps,
        "step_tokens": args.step_tokens,
        "rate": args.rate,
        "seed": args.seed,
    }
    report = {**schedule, "device": args.device, "minutes": minutes, "answers": len(topics)}
    (args.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    if not args.smoke:
        write_held_back(topics, pieces)


if __name__ == "__main__":
    main()
