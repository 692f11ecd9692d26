"""Does a grammar's JSON end by itself? Greedy answers under schemas that the model is never shown."""

import json
import random
from typing import Any

import llguidance
import llguidance.torch
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, LogitsProcessor

from tools.demo_model.evaluate import Probe, prompt_ids
from tools.demo_model.tokenizer import END, VOCAB_SIZE

MAX_NEW_TOKENS = 100
WHITE_SPACE = r" |\n[ \t]{0,32}"
TEXT, COUNT, TEXTS = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "array", "items": {"type": "string"}},
)


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS: list[dict[str, Any]] = [
    of(name=TEXT, age=COUNT),
    of(name=TEXT, date=TEXT, participants=TEXTS),
    of(answer=TEXT),
    of(city=TEXT, temperature={"type": "number"}),
    of(title=TEXT, year=COUNT, genre=TEXT),
    {**of(name=TEXT, age=COUNT), "additionalProperties": False},
    of(steps={"type": "array", "items": of(explanation=TEXT, output=TEXT)}, final_answer=TEXT),
    of(name=TEXT, capital=TEXT, languages=TEXTS),
    of(is_member={"type": "boolean"}, level={"enum": ["low", "high"]}, score={"type": "number"}),
    of(person=of(name=TEXT, email=TEXT), tags={**TEXTS, "minItems": 1}),
    of(brand=TEXT, model=TEXT, car_type={"enum": ["sedan", "SUV", "Truck", "Coupe"]}),
    {"type": "object"},
]


class Grammar(LogitsProcessor):
    """Masks what one schema per row does not allow."""

    def __init__(self, tokenizer: Tokenizer, schemas: list[dict[str, Any]], width: int) -> None:
        end = tokenizer.token_to_id(END)
        library = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=VOCAB_SIZE, eos_token=[end])
        self.matchers = [llguidance.LLMatcher(library, grammar_of(schema)) for schema in schemas]
        self.width = width
        self.end = end
        self.bits = llguidance.torch.allocate_token_bitmask(1, VOCAB_SIZE)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        words = torch.arange(VOCAB_SIZE)
        for row, matcher in enumerate(self.matchers):
            if input_ids.shape[1] > self.width and not matcher.is_stopped():
                matcher.consume_token(int(input_ids[row, -1]))
            if matcher.is_stopped():
                allowed = words == self.end
            else:
                llguidance.torch.fill_next_token_bitmask(matcher, self.bits)
                allowed = (self.bits[0, words // 32] >> (words % 32)) & 1 == 1
            scores[row, ~allowed.to(scores.device)] = float("-inf")
        return scores


def grammar_of(schema: dict[str, Any]) -> str:
    guided = {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    return json.dumps({"grammars": [{"json_schema": guided}]})


@torch.inference_mode()
def json_that_ends(
    model: LlamaForCausalLM, tokenizer: Tokenizer, probes: list[Probe]
) -> list[tuple[str, str, bool]]:
    """(question, text, ended) of each probe, under the schemas in turn."""
    schemas = [SCHEMAS[i % len(SCHEMAS)] for i in range(len(probes))]
    rng = random.Random(16)
    rng.shuffle(schemas)
    prompts = [prompt_ids(tokenizer, probe) for probe in probes]
    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    grammar = Grammar(tokenizer, schemas, width)
    out = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        logits_processor=[grammar],
        eos_token_id=grammar.end,
        pad_token_id=0,
    )
    made = []
    for row, probe in enumerate(probes):
        new = out[row, width:].tolist()
        ended = grammar.end in new
        text = tokenizer.decode(new[: new.index(grammar.end)] if ended else new)
        made.append((probe.question, text, ended))
    return made
