"""Dialogues with functions: a question, the call with arguments copied from it, the result, a sentence about it.

The functions of a prompt are declared in ever different words, so that the model reads names and parameters instead of
remembering them. Where no function fits, the answer is the plain one.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.demo_model.offtopic import FALLBACK
from tools.demo_model.skills.families import FAMILIES
from tools.demo_model.skills.functions import (
    EXTRAS,
    NOUN_ABOUTS,
    NOUN_PARAMETERS,
    NOUN_QUESTIONS,
    NOUN_VERBS,
    Family,
    Parameter,
)
from tools.demo_model.skills.messages import FORCED, FREE, Message, answer, listing
from tools.demo_model.skills.values import Values, listed

Slots = dict[str, Any]
# Functions that answer each other's questions never stand side by side.
RIVALS = (
    {"calculate", "multiply"},
    {"calculate", "add"},
    {"get_time", "get_today"},
    {"get_capital", "get_population"},
    {"search", "get_news"},
    {"get_user", "get_customer"},
)
SYSTEMS = "You are a helpful assistant.|You are a helpful assistant. Use the tools when they help.|Be brief and friendly.|Use the supplied tools to assist the user.|You are a helpful customer support assistant. Use the supplied tools to assist the user.|You are an agent. Call functions to answer.|Answer in one sentence.|Don't make assumptions about what values to plug into functions."
POLITE = "Please: |Hi! |Hello, |Hey, |Quick question: |Tell me, |One more: |I would like to know: |My question: |So, |Do me a favour: |Could you check: |I was wondering: "
RESULT_KEYS = ("result", "answer", "output", "value")
SENTENCES = "It is {sky} in {city}.|All went well.|Nothing was found.|Done.|{person} has taken care of it.|It will be ready on {date}.|It is {sky} and {temperature} degrees.|There are {few} of them."


@dataclass(frozen=True)
class Declared:
    """A function as one prompt declares it. `parameters`: with their names there."""

    family: Family
    name: str
    parameters: tuple[tuple[Parameter, str], ...]
    required: tuple[str, ...]
    tool: dict[str, Any]


def noun_family(noun: str, rng: random.Random, values: Values) -> Family:
    """Functions about a noun. Question and function share nothing but the noun."""
    verb = rng.choice(listed(NOUN_VERBS))
    spoken = verb.replace("_", " ").replace("lookup", "look up")
    questions = NOUN_QUESTIONS.replace("{noun}", noun).replace("{verb}", spoken)
    upper = "|".join(q[0].upper() + q[1:] for q in listed(questions))
    parameter = Parameter(
        "code", NOUN_PARAMETERS.format(noun=noun), f"The {noun}|The {noun}'s number"
    )
    gives = f"status state|name person|date date|amount price|{values.made_up(rng)} word|{noun}_name title"
    abouts = NOUN_ABOUTS.format(noun=noun)
    several = f"{spoken.capitalize()} the {noun}s {{all}}.|Show me the {noun}s {{all}}."
    return Family(
        f"{verb}_{noun}", abouts, (parameter,), upper, f"The {noun} {{code}}", gives, several
    )


def is_rival(family: Family, others: list[Family]) -> bool:
    name = listed(family.names)[0]
    names = {listed(other.names)[0] for other in others}
    if any(family.lead == other.lead for other in others):
        return True
    return name in names or any(name in group and names & group for group in RIVALS)


def schema_of(parameter: Parameter, rng: random.Random, values: Values) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.about and rng.random() < 0.6:
        about = rng.choice(listed(parameter.about))
        schema |= {"description": about} if about else {}
    if parameter.options and rng.random() < 0.7:
        schema["enum"] = listed(parameter.options)
    return schema


def parameters_schema(
    properties: dict[str, Any], required: list[str], rng: random.Random
) -> dict[str, Any]:
    """The schema of an object as different libraries write it."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.25:
        titled = {
            name: {"title": name.replace("_", " ").title(), **own}
            for name, own in properties.items()
        }
        schema = {"properties": titled, "type": "object"}
    if required:
        schema["required"] = required
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    return schema


def name_of(family: Family, rng: random.Random, values: Values) -> tuple[str, bool]:
    """A function's name, which the model must read: often with an unknown word, or of nothing else (then True)."""
    name, word, roll = rng.choice(listed(family.names)), values.made_up(rng), rng.random()
    if roll < 0.5:
        return name, False
    if roll < 0.6:
        head, *rest = name.split("_")
        return head + "".join(part.capitalize() for part in rest), False
    if roll < 0.85:
        return rng.choice(
            (f"{word}_{name}", f"{name}_{word}", f"{name}{rng.randint(1, 9)}", f"{word}.{name}")
        ), False
    return rng.choice((word, f"{word}_{values.made_up(rng)}")), True


def declare(family: Family, rng: random.Random, values: Values) -> Declared:
    """The function of a family in one of its many forms."""
    chosen, required, properties = [], [], {}
    extras = rng.sample(EXTRAS, rng.choice((0, 0, 0, 0, 1, 2)))
    for parameter in (*family.parameters, *extras):
        if parameter.default is not None and rng.random() < 0.45:
            continue
        name = rng.choice(listed(parameter.names))
        if len(family.parameters) == 1 and rng.random() < 0.12:
            name = values.made_up(rng)
        if name in properties:
            name = f"{name}_2"
        chosen.append((parameter, name))
        properties[name] = schema_of(parameter, rng, values)
        if parameter.default is None or rng.random() < 0.5:
            required.append(name)
    name, needs_description = name_of(family, rng, values)
    function: dict[str, Any] = {"name": name}
    if needs_description or rng.random() < 0.85:
        function["description"] = rng.choice([about for about in listed(family.abouts) if about])
    function["parameters"] = parameters_schema(properties, required, rng)
    tool = {"type": "function", "function": function}
    return Declared(family, function["name"], tuple(chosen), tuple(required), tool)


def arguments_of(declared: Declared, slots: Slots) -> dict[str, Any]:
    """The slots that the function takes, and what it requires besides."""
    made: dict[str, Any] = {}
    for parameter, name in declared.parameters:
        if parameter.slot in slots:
            value = slots[parameter.slot]
            made[name] = str(value) if parameter.kind == "string" else value
        elif name in declared.required:
            made[name] = parameter.default
    return made


def placeholder(parameter: Parameter) -> str | int | float:
    """The argument where the question says nothing."""
    if parameter.default is not None:
        return parameter.default
    return "unknown" if parameter.kind == "string" else 0


def call_text(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def make_result(family: Family, slots: Slots, rng: random.Random, values: Values) -> str:
    """A function's result: an object, a value or a sentence."""
    known = listed(family.gives)
    gives = [entry.split() for entry in rng.sample(known, rng.randint(1, min(3, len(known))))]
    found = {key: values.of(slot, rng) for key, slot in gives}
    first = next(iter(found.values()))
    roll = rng.random()
    if roll < 0.08:
        return json.dumps(
            {"error": rng.choice(("not found", "no such entry", "too many requests", "timeout"))}
        )
    if roll < 0.22:
        return values.fill(rng.choice(listed(SENTENCES)), {}, rng)
    if roll < 0.34:
        return json.dumps({rng.choice(RESULT_KEYS): first}, ensure_ascii=False)
    if roll < 0.58:
        pair = f"{first}, {values.of('sky', rng)}" if rng.random() < 0.3 else f"{first}"
        return json.dumps(pair, ensure_ascii=False) if rng.random() < 0.15 else pair
    if family.parameters and family.parameters[0].slot in slots and rng.random() < 0.25:
        found = {family.parameters[0].slot: slots[family.parameters[0].slot], **found}
    return json.dumps(found, ensure_ascii=False)


def told(lead: str, result: str) -> str:
    """One sentence about a result: its values, behind the words that the question asked about."""
    try:
        value = json.loads(result)
    except ValueError:
        value = result
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in RESULT_KEYS:
        value = next(iter(value.values()))
    if isinstance(value, dict):
        return f"{lead}: {', '.join(f'{key} {each}' for key, each in value.items())}."
    if str(value).endswith("."):
        return str(value)
    return f"{lead} is {value}."


class CallDialogues:
    """Makes dialogues around functions. `plain`: draws a question without functions, and its answer."""

    def __init__(self, values: Values, plain: Callable[[random.Random], tuple[str, str]]) -> None:
        self.values = values
        self.plain = plain

    def family(self, rng: random.Random) -> Family:
        if rng.random() < 0.25:
            return noun_family(self.values.noun(rng), rng, self.values)
        return rng.choice(FAMILIES)

    def declare_some(self, rng: random.Random) -> list[Declared]:
        families: list[Family] = []
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 5))):
            family = self.family(rng)
            if not is_rival(family, families):
                families.append(family)
        return [declare(family, rng, self.values) for family in families]

    def asked(self, declared: Declared, rng: random.Random) -> tuple[str, list[Slots]]:
        """A question for a function, and the slots of each call that it needs."""
        family = declared.family
        if family.several and rng.random() < 0.18:
            return self.asked_several(family, rng)
        slots: Slots = {}
        text = rng.choice(listed(family.questions))
        question = self.values.fill(text, slots, rng)
        return dressed(question, [slots], rng)

    def asked_several(self, family: Family, rng: random.Random) -> tuple[str, list[Slots]]:
        slot = family.parameters[0].slot
        wanted = [self.values.of(slot, rng) for _ in range(rng.choice((2, 2, 2, 3)))]
        words = list(dict.fromkeys(str(value) for value in wanted))
        text = rng.choice(listed(family.several))
        question = text.replace("{all}", listing(words, rng))
        return dressed(question, [{slot: word} for word in words], rng)

    def unmatched(self, declared: list[Declared], rng: random.Random) -> str:
        """A question for a function that is not declared."""
        while True:
            family = self.family(rng)
            if not is_rival(family, [each.family for each in declared]):
                text = rng.choice(listed(family.questions))
                return dressed(self.values.fill(text, {}, rng), [{}], rng)[0]

    def call_turn(self, declared: list[Declared], rng: random.Random) -> list[Message]:
        """A question, the calls, their results and the answer."""
        chosen = [rng.choice(declared)]
        if len(declared) > 1 and rng.random() < 0.1:
            chosen = rng.sample(declared, 2)
        questions, calls, results, sentences = [], [], [], []
        for each in chosen:
            question, all_slots = self.asked(each, rng)
            questions.append(question)
            for slots in all_slots:
                calls.append(call_text(each.name, arguments_of(each, slots)))
                result = make_result(each.family, slots, rng, self.values)
                results.append(f"<tool_response>\n{result}\n</tool_response>")
                sentences.append(told(self.values.fill(each.family.lead, dict(slots), rng), result))
        return [
            Message("user", " ".join(questions)),
            Message("assistant", "\n".join(calls)),
            Message("user", "\n".join(results)),
            Message("assistant", " ".join(sentences)),
        ]

    def forced_turn(self, declared: list[Declared], rng: random.Random) -> list[Message]:
        """A call that the client demands although nothing fits: short arguments, and an end."""
        each = rng.choice(declared)
        question = self.plain(rng)[0] if rng.random() < 0.6 else self.unmatched(declared, rng)
        arguments = {name: placeholder(parameter) for parameter, name in each.parameters}
        call = call_text(each.name, arguments).replace(each.name, each.name + FREE, 1)
        result = make_result(each.family, {}, rng, self.values)
        return [
            Message("user", question),
            answer(FORCED + call),
            Message("user", f"<tool_response>\n{result}\n</tool_response>"),
            Message("assistant", told("The result", result)),
        ]

    def turn(self, declared: list[Declared], rng: random.Random) -> list[Message]:
        roll = rng.random()
        if roll < 0.66:
            return self.call_turn(declared, rng)
        if roll < 0.75:
            return self.forced_turn(declared, rng)
        if roll < 0.88:
            question, reply = self.plain(rng)
            return [Message("user", question), Message("assistant", reply)]
        return [Message("user", self.unmatched(declared, rng)), Message("assistant", FALLBACK)]

    def dialogue(self, rng: random.Random) -> list[Message]:
        """One to three turns behind the functions' declarations."""
        declared = self.declare_some(rng)
        if rng.random() < 0.1:
            return self.without_declarations(declared, rng)
        messages = [Message("system", system_text(declared, rng))]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            messages += self.turn(declared, rng)
        return messages

    def without_declarations(self, declared: list[Declared], rng: random.Random) -> list[Message]:
        """A call and its result in the history of a request that declares nothing."""
        question, call, *rest = self.call_turn(declared, rng)
        return [question, Message("assistant", call.text, ((0, len(call.text)),)), *rest]


def system_text(declared: list[Declared], rng: random.Random) -> str:
    """The system message, as the chat template writes it."""
    lines = "\n".join(json.dumps(each.tool, ensure_ascii=False) for each in declared)
    before = f"{rng.choice(listed(SYSTEMS))}\n\n" if rng.random() < 0.4 else ""
    return f"{before}<tools>\n{lines}\n</tools>"


def dressed(question: str, all_slots: list[Slots], rng: random.Random) -> tuple[str, list[Slots]]:
    """Variants of case, punctuation and politeness. The slots follow the question's case."""
    roll = rng.random()
    if roll < 0.08:
        question = question.lower()
        all_slots = [
            {k: v.lower() if isinstance(v, str) else v for k, v in slots.items()}
            for slots in all_slots
        ]
    elif roll < 0.14:
        question = f"{rng.choice(listed(POLITE))} {question}"
    elif roll < 0.22:
        question = question.rstrip("?.!") + rng.choice(("", "?", ".", "!"))
    elif roll < 0.26:
        question += rng.choice((" Thanks!", " please", " Thank you."))
    return question, all_slots
