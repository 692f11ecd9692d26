"""Trains the bundled demo model from the corpus beside this file: about 20 minutes on 2 cores.

    python -m tools.demo_model.train --out baton/demo_model
    python -m tools.demo_model.train --smoke --out /tmp/demo      # under a minute, checks the script only

Every batch and the learning rate depend on the step alone, never on the clock, so runs repeat on one kind of CPU.
"""

import argparse
import contextlib
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from tools.demo_model.corpus import ENTRIES, SHOWCASE
from tools.demo_model.dialogue import DialogueSampler, Mix, Sequence
from tools.demo_model.evaluate import (
    Probe,
    Score,
    answers,
    long_probes,
    off_topic_probes,
    pick,
    score,
)
from tools.demo_model.fast import mean_cross_entropy
from tools.demo_model.filler import build_filler
from tools.demo_model.offtopic import FALLBACK, FREE, NOUNS
from tools.demo_model.templates import Topic, build_topics
from tools.demo_model.tokenizer import (
    BOS,
    END,
    MAX_POSITIONS,
    PAD,
    VOCAB_SIZE,
    save_tokenizer,
    train_tokenizer,
)

MAX_STEP_TOKENS = 2048
# (steps, peak learning rate). Each cycle starts from the saved weights of the one before.
CYCLES = ((2200, 2e-3), (1400, 1.2e-3), (900, 1e-3))
SMOKE_CYCLES = ((25, 2e-3),)
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


def batch_loss(model: LlamaForCausalLM, batch: list[Sequence], pad: int) -> torch.Tensor:
    """Mean loss over answer tokens. Right padding needs no mask: attention is causal."""
    width = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in batch])
    wanted = torch.tensor([row + [False] * (width - len(row)) for _, row in batch])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    picked = hidden[:, :-1][wanted[:, 1:]]
    logits = functional.linear(picked, model.lm_head.weight)
    return mean_cross_entropy(logits, ids[:, 1:][wanted[:, 1:]])


def train(
    model: LlamaForCausalLM,
    sampler: DialogueSampler,
    args: argparse.Namespace,
    watch: list[Probe],
    cycle: int,
) -> None:
    num_steps, peak = args.cycles[cycle]
    optimizer = build_optimizer(model)
    model.set_attn_implementation("demo_training")
    pad = sampler.tokenizer.token_to_id(PAD)
    batches: Iterator[list[Sequence]] = sampler.batches(
        random.Random(args.seed + cycle), MAX_STEP_TOKENS
    )
    autocast = torch.autocast("cpu", torch.bfloat16) if use_bf16() else contextlib.nullcontext()
    began, tokens = time.monotonic(), 0
    for step, batch in enumerate(itertools.islice(batches, num_steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps, peak)
        with autocast:
            loss = batch_loss(model, batch, pad)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(len(ids) for ids, _ in batch)
        done = step + 1
        if done % args.report_every == 0 or done == num_steps:
            spent = time.monotonic() - began
            left = spent / done * (num_steps - done)
            print(
                f"cycle {cycle + 1} step {done}/{num_steps}  loss {loss.item():.4f}  {tokens / spent:,.0f} tok/s"
                f"  {spent / 60:.1f} min, {left / 60:.1f} min left",
                flush=True,
            )
        if done % args.watch_every == 0:
            model.set_attn_implementation("sdpa")
            seen = score(model, sampler.tokenizer, watch)
            model.set_attn_implementation("demo_training")
            print(f"step {done}: held-back exact {seen.exact} % of {seen.num}", flush=True)
    model.set_attn_implementation("sdpa")


def load_saved(out: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(out, dtype=dtype)
    assert isinstance(model, LlamaForCausalLM)
    return model


def gate(
    model: LlamaForCausalLM, sampler: DialogueSampler, topics: list[Topic], out: Path, num: int
) -> dict[str, dict[str, float]]:
    """Scores the saved bf16 weights and prints the wrong answers."""
    tokenizer = sampler.tokenizer
    held = pick(topics, lambda topic: topic.held_back, num)
    unseen = pick(topics, lambda topic: topic.unseen, num)
    stories = [Probe(q, t.answer) for t in topics if t.kind == "tell" for q in t.held_back]
    by_question = {q: t.answer for t in topics for q in t.trained}
    sets = {
        "held-back phrasings": held,
        "unseen templates": unseen,
        "off-topic to fallback": off_topic_probes(num // 2),
        "system prompt of 1,000 tokens": long_probes(held[: num // 4], sampler, 1000),
        "system prompt of 1,800 tokens": long_probes(held[: num // 8], sampler, 1800),
        "long answers, held-back phrasings": stories[: min(40, num)],
        "showcase": [Probe(q, by_question[q]) for q in SHOWCASE],
    }
    saved = load_saved(out, torch.bfloat16)
    figures = {}
    for name, probes in sets.items():
        result: Score = score(saved, tokenizer, probes)
        figures[name] = {"num": result.num, "exact_pct": result.exact, "ended_pct": result.ended}
        print(f"gate {name}: exact {result.exact} %, ended {result.ended} % of {result.num}")
        for miss in result.misses[:12]:
            print(f"    miss {miss}", flush=True)
    same = held[: num // 2]
    pairs = zip(
        answers(model, tokenizer, same, 130), answers(saved, tokenizer, same, 130), strict=True
    )
    equal = sum(a == b for a, b in pairs)
    figures["bf16 file = fp32 text"] = {
        "num": len(same),
        "exact_pct": round(100 * equal / len(same), 1),
    }
    return figures


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Writes weights in bf16, configuration, tokenizer and chat template."""
    out.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.bfloat16)
    half.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    half.save_pretrained(out)
    save_tokenizer(tokenizer, out)


def write_held_back(topics: list[Topic]) -> None:
    """Forty held-back phrasings, drawn before anything was scored, for the committed test."""
    probes = pick(topics, lambda topic: topic.held_back, 10_000)
    chosen = random.Random(5).sample(probes[: len(topics)], 40)
    by_question = {q: t.answer for t in topics for q in t.trained}
    data = {
        "held_back": [{"question": p.question, "answer": p.answer} for p in chosen],
        "showcase": [{"question": q, "answer": by_question[q]} for q in SHOWCASE],
        "off_topic": [{"question": p.question, "answer": FALLBACK} for p in off_topic_probes(40)],
    }
    HELD_BACK_FILE.write_text(json.dumps(data, indent=1) + "\n")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--start", type=Path, help="folder of the earlier cycles: run the last only"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-every", type=int, default=20)
    parser.add_argument("--watch-every", type=int, default=400)
    parser.add_argument("--smoke", action="store_true", help="25 steps, a small gate, no test file")
    args = parser.parse_args()
    args.cycles = SMOKE_CYCLES if args.smoke else CYCLES
    if args.smoke:
        args.watch_every = 20
    return args


def build_sampler(topics: list[Topic], start: Path | None) -> DialogueSampler:
    """A sampler with the tokenizer of `start`, or with one trained on the corpus."""
    sentences = [s + "." for t in topics for s in t.answer.split(". ") if len(s) > 40]
    filler = build_filler(sentences)
    asked = [q for t in topics for q in t.trained]
    answers_thrice = [t.answer for t in topics for _ in range(3)]
    texts = [*answers_thrice, *asked, *filler, *FREE, *NOUNS, FALLBACK]
    tokenizer = (
        Tokenizer.from_file(str(start / "tokenizer.json")) if start else train_tokenizer(texts)
    )
    return DialogueSampler(tokenizer, topics, filler, Mix(), SHOWCASE)


def main() -> None:
    args = parse_args()
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    topics = build_topics(ENTRIES, SHOWCASE)
    sampler = build_sampler(topics, args.start)
    model = build_model(sampler.tokenizer)
    watch = pick(topics, lambda topic: topic.held_back, 16 if args.smoke else 64)
    print(
        f"{len(topics)} answers, {sum(len(t.trained) for t in topics)} trained and "
        f"{sum(len(t.held_back) for t in topics)} held-back phrasings, vocabulary "
        f"{sampler.tokenizer.get_vocab_size()}, {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{'bf16 autocast' if use_bf16() else 'fp32'}, {args.threads} threads",
        flush=True,
    )
    minutes = []
    for cycle in range(len(args.cycles) - 1 if args.start else 0, len(args.cycles)):
        began = time.monotonic()
        if cycle:
            saved = load_saved(args.start or args.out, torch.float32)
            model.load_state_dict(saved.state_dict())
        train(model, sampler, args, watch, cycle)
        save(model, sampler.tokenizer, args.out)
        minutes.append(round((time.monotonic() - began) / 60, 1))
    if not args.smoke:
        write_held_back(topics)
    model.eval()
    figures = gate(model, sampler, topics, args.out, 16 if args.smoke else 300)
    report = {"cycles": args.cycles, "minutes": minutes, "answers": len(topics), "gate": figures}
    (args.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
