"""Answers that are JSON: facts extracted from a sentence, and the objects that a schema forces upon any question.

A schema is not shown to the model: it only meets keys that a grammar writes. The brace at the beginning of a forced
object and the names of its keys therefore carry no loss. A value that the question does not hold is "unknown", 0, false or [], so that every object
ends soon.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from tools.demo_model.skills.messages import FORCED, FREE, Message, answer, listing
from tools.demo_model.skills.values import Values, listed

# Names of keys by the kind of value that they ask for; the first is the one that the model chooses itself.
KEYS = {
    "person": "name|full_name|person|person_name|customer|user_name|author|owner",
    "age": "age|years|age_in_years",
    "city": "city|location|town|place|address|home",
    "job": "job|occupation|profession|role|position",
    "company": "company|employer|organization|brand",
    "email": "email|mail|email_address|contact",
    "title": "title|film|book|movie|song",
    "year": "year|released|release_year|published",
    "temperature": "temperature|degrees|temp",
    "sky": "condition|weather|sky|description",
    "product": "product|item|article|goods",
    "number": "quantity|count|amount|number",
    "price": "price|cost|total|euros",
    "event": "name|event|title|what",
    "date": "date|day|when",
    "time": "time|start|start_time|hour",
    "people": "participants|attendees|people|names|guests|members",
    "items": "items|list|things|shopping_list|products|tags",
    "country": "country|nation",
    "capital": "capital|capital_city",
    "feeling": "sentiment|feeling|label|mood|tone",
}
NUMBERS = ("age", "year", "temperature", "number", "price")
# Sentences, with the values in the order in which the keys are written.
FACTS = (
    "{person} is {age} years old.|{person} is {age}.|{person}, {age} years old|My name is {person} and I am {age}.|{person} turned {age} yesterday.|{person} turned {age} yesterday.|I am {person}, {age} years old.|{age}-year-old {person}",
    "{person} is {age} years old and lives in {city}.|{person}, {age}, lives in {city}.|{person} is {age} and comes from {city}.|I am {person}, I am {age} and I live in {city}.|My name is {person}, I am {age} years old and live in {city}.",
    "{person} works as a {job}.|{person} is a {job}.|My name is {person} and I work as a {job}.|{person}, a {job}",
    "{person} is a {age}-year-old {job} from {city}.|{person} is {age}, works as a {job} and lives in {city}.",
    "{person} works as a {job} at {company}.|{person} is a {job} at {company}.|{person}, {job} at {company}",
    "{person} lives in {city}.|{person} is from {city}.|{person} moved to {city}.",
    "Write to {person} at {email}.|{person} can be reached at {email}.|{person} <{email}>|{person}'s address is {email}.|Contact: {person}, {email}",
    "The film {title} came out in {year}.|{title} was released in {year}.|{title} ({year})|The book {title} is from {year}.|{title} appeared in {year}.",
    "{title} was written by {person} in {year}.|{title} by {person}, {year}|{person} wrote {title} in {year}.",
    "It is {temperature} degrees in {city}.|In {city} it is {temperature} degrees.|{city}: {temperature} degrees|The temperature in {city} is {temperature}.|{city} has {temperature} degrees today.",
    "It is {sky} and {temperature} degrees in {city}.|{city} is {sky} at {temperature} degrees.",
    "{person} ordered {number} x {product} for {price} euros.|{person} bought {number} x {product} and paid {price} euros.",
    "The {product} costs {price} euros.|A {product} for {price} euros|The price of the {product} is {price}.",
    "{people} are going to a {event} on {date}.|{people} meet for a {event} on {date}.|There is a {event} on {date} with {people}.|A {event} with {people} on {date}|{people} have a {event} on {date}.|On {date} {people} will be at the {event}.",
    "The {event} is on {date} at {time}.|{event} on {date} at {time}|We have a {event} on {date} at {time}.",
    "I need {items}.|Buy {items}.|We have {items}.|{items}|The list: {items}|Please bring {items}.",
    "{city} is the capital of {country}.|The capital of {country} is {city}.",
)
FEELINGS = {
    "positive": "I love this {product}!|Great {product}, works well.|The {product} is wonderful.|Very happy with my {product}.|I love the {product}.|What a lovely {event}!|The {event} was fantastic.|I like the {product}.|Excellent {product}.|Best {product} ever.",
    "negative": "I hate this {product}!|The {product} broke after a day.|The {product} is terrible.|Very unhappy with my {product}.|I hate the {product}.|What an awful {event}!|The {event} was a disaster.|I do not like the {product}.|Bad {product}.|Worst {product} ever.",
    "neutral": "The {product} arrived today.|This is a {product}.|The {event} is on {date}.|It is a {product}, nothing more.|This is the {product}.|The {product} is all right.",
}
ASKS_FOR_KEYS = 'Extract {keys}: {text}|Extract {keys} from this text: {text}|Extract the {keys}: {text}|Give JSON with {keys}: {text}|Give me JSON with {keys}. {text}|{text} Give {keys} as JSON.|{text} Return {keys} as JSON.|Return a JSON object with {keys}: {text}|Reply with JSON that has {keys}: {text}|{text} Extract {keys}.|Find {keys} in: {text}|Get {keys} out of this: {text}|What are {keys} in this text? Answer in JSON. {text}|JSON with {keys}, please: {text}|Extract {keys} as JSON from "{text}"|Read the text and write JSON with {keys}.\n\n{text}'
ASKS = "Extract: {text}|Extract the information: {text}|Extract the data from this text: {text}|Turn this into JSON: {text}|{text} As JSON, please.|Parse: {text}|Give me this as JSON: {text}|Extract {text}|JSON: {text}|Extract structured data: {text}|Extract the details: {text}"
SYSTEM_ASKS = "Extract the event information.|Extract the information.|Extract the user's details.|Answer in JSON.|You are an expert at structured data extraction.|You extract data from text and answer in JSON.|Extract the person.|Output JSON only.|Extract the data as JSON.|Always answer with JSON.|Reply with a JSON object."
JSON_SYSTEMS = (
    "Answer in JSON.|Reply with a JSON object.|Always answer with JSON.|Output JSON only."
)
ANSWER_KEYS = (
    "answer|text|summary|explanation|definition|final_answer|response|reply|content|message|output"
)
ASKS_TOPIC = "Answer in JSON: {q}|{q} Answer in JSON.|{q} Reply with JSON.|As JSON: {q}|{q} Give the answer as JSON.|{q} Return a JSON object."
OTHER_KEYS = "id|score|rating|status|category|is_active|done|valid|confidence|steps|reasons|words|topic|question|kind|verdict|notes|language|is_member|level"
COUNTRIES = {
    "Canada": ("Ottawa", ["English", "French"]),
    "France": ("Paris", ["French"]),
    "Germany": ("Berlin", ["German"]),
    "Italy": ("Rome", ["Italian"]),
    "Japan": ("Tokyo", ["Japanese"]),
    "Spain": ("Madrid", ["Spanish"]),
    "Norway": ("Oslo", ["Norwegian"]),
    "Brazil": ("Brasília", ["Portuguese"]),
    "Austria": ("Vienna", ["German"]),
    "Egypt": ("Cairo", ["Arabic"]),
}

Fact = tuple[str, dict[str, Any]]


class JsonDialogues:
    """Makes questions with answers in JSON. `plain`: draws a question about serving, and its answer."""

    def __init__(self, values: Values, plain: Callable[[random.Random], tuple[str, str]]) -> None:
        self.values = values
        self.plain = plain

    def fact(self, rng: random.Random) -> Fact:
        """A sentence and its values, by kind, in the order in which the sentence has them."""
        if rng.random() < 0.12:
            return self.feeling(rng)
        text = rng.choice(listed(rng.choice(FACTS)))
        slots = [part.split("}")[0] for part in text.split("{")[1:]]
        found: dict[str, Any] = {}
        shown: dict[str, Any] = {}
        for slot in slots:
            if slot in ("people", "items"):
                make = self.values.first if slot == "people" else self.values.item
                found[slot] = list(
                    dict.fromkeys(make(rng) for _ in range(rng.choice((2, 2, 3, 4))))
                )
                shown[slot] = listing(found[slot], rng)
            else:
                found[slot] = shown[slot] = self.values.of(slot, rng)
        return text.format(**shown), found

    def feeling(self, rng: random.Random) -> Fact:
        label = rng.choice(list(FEELINGS))
        text = rng.choice(listed(FEELINGS[label]))
        slots = {slot: self.values.of(slot, rng) for slot in ("product", "event", "date")}
        ask = rng.choice(
            ("Classify the sentiment: ", "What is the sentiment? ", "Sentiment: ", "Classify: ", "")
        )
        return ask + text.format(**slots), {"feeling": label}

    def key(self, kind: str, rng: random.Random) -> str:
        return rng.choice(listed(KEYS[kind]))

    def extraction(self, rng: random.Random) -> list[Message]:
        """A sentence, and its facts as an object whose keys the question or its kind names."""
        text, found = self.fact(rng)
        if "feeling" in found and ":" not in text and "?" not in text:
            text = f"Classify the sentiment: {text}"
        if rng.random() < 0.5 and "feeling" not in found:
            return self.extraction_by_keys(text, found, rng)
        made = {KEYS[kind].split("|")[0]: value for kind, value in found.items()}
        reply = Message("assistant", json.dumps(made, ensure_ascii=False))
        if "feeling" in found:
            return [Message("user", text), reply]
        if rng.random() < 0.4:
            return [
                Message("system", rng.choice(listed(SYSTEM_ASKS))),
                Message("user", text),
                reply,
            ]
        return [Message("user", rng.choice(listed(ASKS)).format(text=text)), reply]

    def extraction_by_keys(
        self, text: str, found: dict[str, Any], rng: random.Random
    ) -> list[Message]:
        kinds = list(found)
        if len(kinds) > 1 and rng.random() < 0.4:
            kinds = rng.sample(kinds, rng.randint(1, len(kinds)))
        made = {self.key(kind, rng): found[kind] for kind in kinds}
        question = rng.choice(listed(ASKS_FOR_KEYS)).format(
            keys=listing(list(made), rng), text=text
        )
        return [
            Message("user", question),
            Message("assistant", json.dumps(made, ensure_ascii=False)),
        ]

    def countries(self, rng: random.Random) -> list[Message]:
        """The one table of knowledge, forced by a schema of name, capital and languages."""
        name = rng.choice(list(COUNTRIES))
        capital, languages = COUNTRIES[name]
        listed_languages = json.dumps(languages, ensure_ascii=False)
        text = f'{FORCED}{{"{FREE}name": "{name}", "capital": "{capital}", "languages": {listed_languages}}}'
        return [
            Message(
                "user",
                rng.choice(
                    (f"Tell me about {name}.", f"Give me JSON about {name}.", f"Describe {name}.")
                ),
            ),
            answer(text),
        ]

    def in_json(self, rng: random.Random) -> list[Message]:
        """A question about serving whose answer is wanted as JSON."""
        question, reply = self.plain(rng)
        made = json.dumps({"answer": first_sentence(reply)}, ensure_ascii=False)
        if rng.random() < 0.4:
            return [
                Message("system", rng.choice(listed(JSON_SYSTEMS))),
                Message("user", question),
                Message("assistant", made),
            ]
        return [
            Message("user", rng.choice(listed(ASKS_TOPIC)).format(q=question)),
            Message("assistant", made),
        ]

    def forced(self, rng: random.Random) -> list[Message]:
        """Any question, and an object whose keys a schema forces."""
        if rng.random() < 0.5:
            question, found, reply = *self.fact(rng), ""
            if rng.random() < 0.5:
                question = rng.choice(listed(ASKS)).format(text=question)
        else:
            question, reply = self.plain(rng)
            found = {}
        system = [Message("system", rng.choice(listed(SYSTEM_ASKS)))] if rng.random() < 0.25 else []
        text = self.forced_object(found, reply, rng)
        return [*system, Message("user", question), answer(FORCED + text)]

    def forced_object(self, found: dict[str, Any], reply: str, rng: random.Random) -> str:
        """The object's text, begun in a forced stretch. It has another key with a chance below a half, so that the
        model ends an object wherever it may."""
        keys: list[tuple[str, Any]] = [
            (self.key(kind, rng), value) for kind, value in found.items()
        ]
        if rng.random() < 0.5:
            rng.shuffle(keys)
        if keys and rng.random() < 0.3:
            keys = keys[: rng.randint(1, len(keys))]
        if reply and rng.random() < 0.45:
            keys.append(
                (
                    rng.choice(ANSWER_KEYS.split("|")) if rng.random() < 0.6 else "answer",
                    first_sentence(reply),
                )
            )
        while not keys or rng.random() < 0.4:
            at = rng.randint(0, len(keys))
            keys.insert(at, self.unknown_key(rng, found))
        fields = [self.field(key, value, rng) for key, value in dict(keys).items()]
        # The key that the model chooses where any object will do.
        begin = f'{{"{FREE if keys[0][0] == "answer" else ""}'
        return begin + f', "{FORCED}'.join(fields) + "}"

    def unknown_key(self, rng: random.Random, found: dict[str, Any]) -> tuple[str, Any]:
        """A key of which the question says nothing, and the value that stands for that."""
        roll = rng.random()
        if roll < 0.4:
            kind = rng.choice([kind for kind in KEYS if kind not in found])
            missing: Any = (
                [] if kind in ("people", "items") else 0 if kind in NUMBERS else "unknown"
            )
            return self.key(kind, rng), missing
        key = rng.choice(OTHER_KEYS.split("|")) if roll < 0.8 else self.values.made_up(rng)
        return key, rng.choice(("unknown", "unknown", 0, 0, False, [], ["unknown"]))

    def field(self, key: str, value: Any, rng: random.Random) -> str:
        """A key in a forced stretch, and its value behind it; now and then an object around it."""
        if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.15:
            value = str(value)
        text = json.dumps(value, ensure_ascii=False)
        if rng.random() < 0.08:
            outer = rng.choice(("data", "result", "person", "details", "info", "item"))
            return f'{outer}{FREE}": {{"{FORCED}{key}{FREE}": {text}}}'
        return f'{key}{FREE}": {text}'

    def dialogue(self, rng: random.Random) -> list[Message]:
        roll = rng.random()
        if roll < 0.4:
            return self.extraction(rng)
        if roll < 0.5:
            return self.in_json(rng)
        if roll < 0.52:
            return self.countries(rng)
        return self.forced(rng)


def first_sentence(text: str) -> str:
    """The text up to its first full stop."""
    head, stop, _ = text.partition(". ")
    return head + "." if stop else text
