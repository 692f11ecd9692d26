"""The functions that training prompts declare: names, descriptions, parameters, questions and results.

A question names the slots of its function's parameters; `values.py` fills them. "a|b" are alternatives.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function. `slot`: the value of the question that it takes; `default`: the argument where the
    question has no such value but the function requires it."""

    slot: str
    names: str
    about: str = ""
    kind: str = "string"
    default: str | int | float | None = None
    options: str = ""


@dataclass(frozen=True)
class Family:
    """Functions that answer the same questions. `lead` begins the sentence about a result, `gives` lists what a result
    holds, as "key slot"."""

    names: str
    abouts: str
    parameters: tuple[Parameter, ...]
    questions: str
    lead: str
    gives: str
    # A question for two or three values of the first slot, which makes as many calls.
    several: str = ""


# Parameters that no question speaks of: left out, or the default where they are required.
EXTRAS = (
    Parameter(
        "extra",
        "days|limit|max_results|page|count|num_results",
        "How many|The limit|",
        "integer",
        0,
    ),
    Parameter(
        "extra", "verbose|details|include_details|live|exact", "More details|", "boolean", False
    ),
    Parameter(
        "extra",
        "format|lang|locale|notes|country_code|options|comment",
        "The format|Optional notes|",
        "string",
        "unknown",
    ),
)

# A function for a noun, such as get_invoice(invoice_id): the name and the question share the noun.
NOUN_VERBS = "get|find|look_up|fetch|show|check|delete|open|cancel|update|lookup|archive|load|print"
NOUN_PARAMETERS = "{noun}_id|id|{noun}|{noun}_number|name|key|{noun}_name|query|number"
NOUN_ABOUTS = "Get a {noun}|Gets the {noun} with this id|Returns one {noun}|Find a {noun} by its number|The {noun} service|"
NOUN_QUESTIONS = "{verb} {noun} {code}.|{verb} the {noun} {code}.|Please {verb} {noun} {code}.|Can you {verb} the {noun} {code}?|I need the {noun} {code}.|What about {noun} {code}?|Show me the {noun} {code}.|Which {noun} has the number {code}?|What do you know about {noun} {code}?|{noun} {code}"
