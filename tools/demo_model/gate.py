"""The gate: scores saved weights on prompts that were not trained, and prints the wrong answers.

python -m tools.demo_model.gate --model baton/demo_model
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from tools.demo_model.corpus import ENTRIES, SHOWCASE
from tools.demo_model.dialogue import DialogueSampler
from tools.demo_model.evaluate import (
    Probe,
    answers,
    asking,
    call_probes,
    json_probes,
    long_probes,
    off_topic_probes,
    pick,
    score,
)
from tools.demo_model.grammar_gate import json_that_ends
from tools.demo_model.sources import build_sampler, word_pieces
from tools.demo_model.templates import Topic, build_topics

Figures = dict[str, dict[str, float]]


def load_saved(folder: Path, dtype: torch.dtype, device: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    assert isinstance(model, LlamaForCausalLM)
    return model.to(device).eval()


def probe_sets(sampler: DialogueSampler, topics: list[Topic], num: int) -> dict[str, list[Probe]]:
    """The sets of probes, by name."""
    held = pick(topics, lambda topic: topic.held_back, num)
    stories = [asking(q, t.answer) for t in topics if t.kind == "tell" for q in t.held_back]
    by_question = {q: t.answer for t in topics for q in t.trained}
    pieces = word_pieces(sampler.tokenizer)
    return {
        "held-back phrasings": held,
        "unseen templates": pick(topics, lambda topic: topic.unseen, num),
        "off-topic to fallback": off_topic_probes(num // 2),
        "system prompt of 1,000 tokens": long_probes(held[: num // 4], sampler, 1000),
        "system prompt of 1,800 tokens": long_probes(held[: num // 8], sampler, 1800),
        "long answers, held-back phrasings": stories[: min(40, num)],
        "showcase": [asking(q, by_question[q]) for q in SHOWCASE],
        **call_probes(held, num, pieces),
        "facts as JSON": json_probes(num // 2, pieces),
    }


def score_sets(
    model: LlamaForCausalLM, sampler: DialogueSampler, sets: dict[str, list[Probe]]
) -> Figures:
    figures: Figures = {}
    for name, probes in sets.items():
        result = score(model, sampler.tokenizer, probes)
        figures[name] = {"num": result.num, "exact_pct": result.exact, "ended_pct": result.ended}
        print(f"gate {name}: exact {result.exact} %, ended {result.ended} % of {result.num}")
        for miss in result.misses[:12]:
            print(f"    miss {miss}", flush=True)
    return figures


def score_grammars(
    model: LlamaForCausalLM, sampler: DialogueSampler, sets: dict[str, list[Probe]], num: int
) -> Figures:
    """Held-back questions, off-topic ones and facts, each under a schema that has nothing to do with it."""
    names = ("held-back phrasings", "off-topic to fallback", "facts as JSON")
    probes = [probe for name in names for probe in sets[name][: num // 9]]
    made = json_that_ends(model, sampler.tokenizer, probes)
    for question, text, ended in made[:: max(1, len(made) // 12)]:
        print(f"    {question[-60:]!r} -> {text!r}{'' if ended else ' ...'}")
    for question, text, _ in [row for row in made if not row[2]][:12]:
        print(f"    no end {question[-60:]!r} -> {text!r}", flush=True)
    ended = round(100 * sum(row[2] for row in made) / len(made), 1)
    print(f"gate JSON of a schema: ended {ended} % of {len(made)}")
    return {"JSON of a schema": {"num": len(made), "ended_pct": ended}}


def gate(
    folder: Path, sampler: DialogueSampler, topics: list[Topic], num: int, device: str
) -> Figures:
    """Scores of the bf16 weights in a folder; and do they say the same in fp32?"""
    saved = load_saved(folder, torch.bfloat16, device)
    sets = probe_sets(sampler, topics, num)
    figures = score_sets(saved, sampler, sets) | score_grammars(saved, sampler, sets, num)
    same = sets["held-back phrasings"][: num // 2]
    exact = load_saved(folder, torch.float32, device)
    pairs = zip(
        answers(exact, sampler.tokenizer, same, 130),
        answers(saved, sampler.tokenizer, same, 130),
        strict=True,
    )
    equal = round(100 * sum(a == b for a, b in pairs) / len(same), 1)
    print(f"gate bf16 = fp32 text: {equal} % of {len(same)}")
    figures["bf16 = fp32 text"] = {"num": len(same), "exact_pct": equal}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--num", type=int, default=300, help="probes of a set")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    topics = build_topics(ENTRIES, SHOWCASE)
    sampler = build_sampler(topics, args.model)
    figures = gate(args.model, sampler, topics, args.num, args.device)
    for name, row in figures.items():
        shares = [f"{row[key]} %" if key in row else "-" for key in ("exact_pct", "ended_pct")]
        print(f"| {name} | {row['num']} | {' | '.join(shares)} |")
    report_file = args.model / "training.json"
    report = json.loads(report_file.read_text()) if report_file.exists() else {}
    report_file.write_text(json.dumps({**report, "gate": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
