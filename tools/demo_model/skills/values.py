"""Names, places, numbers and dates that questions are filled with.

A fifth of every list is kept for the gate. Made-up words make sure that the model copies a value and does not
remember it.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

HELD_BACK_EVERY = 5

CITIES = """Paris|London|Berlin|Madrid|Lisbon|Rome|Vienna|Tokyo|New York|Reykjavik|San Francisco|Chicago|Boston|Toronto|
Oslo|Dublin|Cairo|Mumbai|Sydney|Kyoto|Bogotá|Lima|Nairobi|Seoul|Zurich|Prague|Athens|Munich|Los Angeles|Seattle|Delhi|
Warsaw|Budapest|Amsterdam|Buenos Aires|Brussels|Hamburg|Melbourne|Singapore|Helsinki|Milan|Beijing|Mexico City|Miami|
Copenhagen|Stockholm|Barcelona|São Paulo|Bangkok|Denver|Austin|Geneva|Florence|Montreal|Marrakesh|Hanoi|Jakarta|Lagos|
Dallas|Edinburgh|Porto|Naples|Venice|Cologne|Manchester|Houston|Auckland|Dubai|Istanbul|Vancouver"""
COUNTRIES = """France|Germany|Spain|Italy|Norway|Japan|Canada|India|Brazil|Portugal|Egypt|Kenya|Chile|Sweden|Iceland|
Peru|Austria|Mexico|Greece|Finland"""
FIRST_NAMES = """Ann|Bob|Alice|John|Maria|Jason|Peter|Clara|Tom|Ingrid|Jane|David|Emma|Lucas|Priya|Ahmed|Sofia|Daniel|
Mia|Oliver|Sarah|Michael|Laura|Kenji|Fatima|Paul|Nina|Carlos|Julia|Henrik|Anna|Mark|Eva|Leo|Zoe"""
LAST_NAMES = """Miller|Smith|Doe|Brown|Larsen|Garcia|Johnson|Lee|Schmidt|Okafor|Patel|Rossi|Novak|Jones|Fischer|Kim|
Dubois|Silva|Taylor|Andersson"""
NOUNS = """invoice|customer|ticket|parcel|document|project|employee|book|car|contract|recipe|product|server|report|
account|payment|task|song|film|course|device|supplier|playlist|folder|license|vehicle|contact|note|page|warehouse"""
WORDS = """lantern|bridge|marble|compass|orchard|feather|copper|harbour|whistle|saddle|velvet|pepper|meadow|anchor|
thunder|basket|mirror|candle|ribbon|walnut|glacier|pebble|sparrow|timber|canvas"""
ADJECTIVES = "cheap|new|old|good|green|small|famous|healthy|quiet|modern|wooden|electric|Italian|local|simple|large"
THINGS = """flights|hotels|shoes|bicycles|restaurants|recipes|museums|laptops|books|gardens|jobs|concerts|trains|
houses|headphones|chairs|lamps|cameras|tents|beaches"""
JOBS = """teacher|baker|nurse|engineer|lawyer|painter|farmer|doctor|pilot|carpenter|designer|journalist|cook|plumber|
librarian"""
COMPANIES = """Acme|Globex|Northwind|Contoso|Initech|Umbra|Wayfair|Bluestone|Siemens|Halcyon|Apple|Google|Tesla|
Microsoft|Lumen"""
PRODUCTS = "laptop|phone|lamp|desk|kettle|camera|chair|bicycle|jacket|printer|tent|watch|table|toaster|keyboard"
EVENTS = """science fair|concert|birthday party|team meeting|book club|dinner|workshop|football match|wedding|lunch|
conference|picnic|film night|yoga class|job interview"""
ITEMS = """milk|eggs|bread|apples|rice|cheese|soap|coffee|carrots|paper|tea|sugar|tomatoes|batteries|butter|onions|
flour|honey|candles|salt"""
LANGUAGES = "French|German|Spanish|Italian|Norwegian|Japanese|Portuguese|Polish|Dutch|Swedish"
CURRENCIES = "USD|EUR|GBP|JPY|CHF|CAD|SEK|INR|AUD|NOK"
UNITS = """miles|kilometers|pounds|kilograms|feet|meters|inches|centimeters|liters|gallons|ounces|grams|minutes|hours|
yards"""
ROOMS = "kitchen|bedroom|living room|office|bathroom|hall|garage|garden|basement|attic"
SKIES = "sunny|cloudy|rainy|windy|foggy|clear|snowy|partly cloudy|stormy|overcast"
WEEKDAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|tomorrow|today|next Monday|next Friday"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
STATES = "shipped|delivered|open|closed|paid|pending|active|done|cancelled|in transit"
TITLES = "The|Night|River|Stone|Alien|Garden|Last|Winter|King|Lost|Blue|Island|Silent|Empire|Dune|Return|House|Storm"
FOLDERS = "src|docs|home|data|reports|tmp|photos|logs|work|notes"
ENDINGS = "txt|md|py|csv|json|pdf|log|html"
SIGNS = "Aries|Taurus|Gemini|Cancer|Leo|Virgo|Libra|Scorpio|Sagittarius|Capricorn|Aquarius|Pisces"
TICKERS = """Apple AAPL|Microsoft MSFT|Tesla TSLA|Amazon AMZN|Google GOOGL|Nvidia NVDA|Netflix NFLX|Meta META|
Intel INTC|IBM IBM"""

# Tokens of letters: those that begin a word, and those that go on in it.
Pieces = tuple[Sequence[str], Sequence[str]]

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


@lru_cache(maxsize=4096)
def listed(text: str) -> tuple[str, ...]:
    """The alternatives of "a|b|c"."""
    return tuple(word.strip() for word in text.replace("\n", " ").split("|"))


@lru_cache(maxsize=4096)
def divided(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The alternatives for training, and those for the gate; both are all of them where there are few."""
    words = listed(text)
    if len(words) < HELD_BACK_EVERY:
        return words, words
    held = words[HELD_BACK_EVERY - 1 :: HELD_BACK_EVERY]
    return tuple(word for word in words if word not in held), held


def syllables(rng: random.Random) -> str:
    """A word of two or three syllables that no list holds."""
    parts = [
        rng.choice(CONSONANTS) + rng.choice(VOWELS) + rng.choice(("", "", "n", "r", "l", "s"))
        for _ in range(rng.choice((2, 2, 3)))
    ]
    return "".join(parts)


class Values:
    """Draws a value of a kind. `is_gate`: from the parts of the lists that are never trained. `pieces`: beginnings
    and continuations of words, so that every token of the vocabulary is copied now and then."""

    def __init__(self, is_gate: bool = False, pieces: Pieces = ((), ())) -> None:
        self.is_gate = is_gate
        self.pieces = pieces

    def made_up(self, rng: random.Random) -> str:
        """A word that no list holds."""
        begins, more = self.pieces
        if begins and rng.random() < 0.7:
            return (rng.choice(begins) + "".join(rng.choices(more, k=rng.choice((0, 0, 1, 2)))))[
                :14
            ].lower()
        return syllables(rng)

    def listed_or_new(self, text: str, share: float, rng: random.Random) -> str:
        """A word of a list, or with a chance of `share` one that is made up."""
        return self.made_up(rng) if rng.random() < share else self.part(text, rng)

    def of(self, slot: str, rng: random.Random) -> str | int | float:
        """The value of a slot such as `city` or `city_2`."""
        kind = re.sub(r"_\d$", "", slot)
        make: Callable[[random.Random], str | int | float] = getattr(self, kind)
        return make(rng)

    def part(self, text: str, rng: random.Random) -> str:
        """One of "a|b|c", of those for training or for the gate."""
        return rng.choice(divided(text)[self.is_gate])

    def fill(self, text: str, slots: dict[str, Any], rng: random.Random) -> str:
        """The text with its slots filled; values that are new are added to `slots`."""
        for slot in re.findall(r"\{(\w+)\}", text):
            if slot.lower() not in slots:
                slots[slot.lower()] = self.of(slot.lower(), rng)
        titled = {slot.title(): str(value).title() for slot, value in slots.items()}
        return text.format(**{**titled, **slots})

    def city(self, rng: random.Random) -> str:
        if rng.random() < 0.4:
            words = [self.made_up(rng).capitalize() for _ in range(rng.choice((1, 1, 1, 2)))]
            return " ".join(words)
        return self.part(CITIES, rng)

    def country(self, rng: random.Random) -> str:
        return rng.choice(listed(COUNTRIES))

    def first(self, rng: random.Random) -> str:
        return self.listed_or_new(FIRST_NAMES, 0.4, rng).capitalize()

    def person(self, rng: random.Random) -> str:
        last = self.listed_or_new(LAST_NAMES, 0.4, rng).capitalize()
        return f"{self.first(rng)} {last}" if rng.random() < 0.5 else self.first(rng)

    def word(self, rng: random.Random) -> str:
        return self.listed_or_new(WORDS, 0.5, rng)

    def subject(self, rng: random.Random) -> str:
        text = f"{self.part(ADJECTIVES, rng)} {self.listed_or_new(THINGS, 0.35, rng)}"
        return f"{text} in {self.city(rng)}" if rng.random() < 0.4 else text

    def amount(self, rng: random.Random) -> int | float:
        return round(rng.uniform(0.5, 500), 1) if rng.random() < 0.3 else self.number(rng)

    def number(self, rng: random.Random) -> int:
        return rng.randint(1, rng.choice((9, 99, 99, 999, 9999)))

    def few(self, rng: random.Random) -> int:
        return rng.randint(2, 30)

    def expression(self, rng: random.Random) -> str:
        signs = rng.choices(("+", "-", "*", "/"), k=rng.choice((1, 1, 1, 2)))
        text = str(self.number(rng))
        for sign in signs:
            text += f" {sign} {self.number(rng)}"
        return text

    def code(self, rng: random.Random) -> str:
        letters = "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=rng.randint(1, 3)))
        number = str(rng.randint(1, 99999))
        forms = (number, number, f"{letters}-{number}", f"{letters}{number}", f"ORD-{number}")
        return rng.choice(forms)

    def date(self, rng: random.Random) -> str:
        roll = rng.random()
        if roll < 0.5:
            return self.part(WEEKDAYS, rng)
        month, day = rng.randint(1, 12), rng.randint(1, 28)
        if roll < 0.8:
            return f"{rng.randint(2020, 2030)}-{month:02}-{day:02}"
        return f"{listed(MONTHS)[month - 1]} {day}"

    def time(self, rng: random.Random) -> str:
        hour = rng.randint(1, 23)
        return (
            f"{hour % 12 or 12} {rng.choice(('am', 'pm'))}"
            if rng.random() < 0.4
            else f"{hour}:{rng.randint(0, 59):02}"
        )

    def email(self, rng: random.Random) -> str:
        return f"{self.first(rng).lower()}@{rng.choice(('example', 'mail', 'test', self.made_up(rng)))}.{rng.choice(('com', 'org', 'net'))}"

    def ticker(self, rng: random.Random) -> str:
        if rng.random() < 0.4:
            return rng.choice(listed(TICKERS)).split()[1]
        return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(2, 4)))

    def path(self, rng: random.Random) -> str:
        name = (
            self.word(rng)
            if rng.random() < 0.5
            else rng.choice(("readme", "main", "notes", "index"))
        )
        folders = [rng.choice(listed(FOLDERS)) for _ in range(rng.choice((0, 1, 1, 2)))]
        return "/".join([*folders, f"{name}.{rng.choice(listed(ENDINGS))}"])

    def title(self, rng: random.Random) -> str:
        words = [rng.choice(listed(TITLES)) for _ in range(rng.choice((1, 2, 2)))]
        return " ".join([*words, self.made_up(rng).capitalize()] if rng.random() < 0.4 else words)

    def degrees(self, rng: random.Random) -> str:
        return rng.choice(("celsius", "fahrenheit"))

    def temperature(self, rng: random.Random) -> int | float:
        return round(rng.uniform(-5, 35), 1) if rng.random() < 0.3 else rng.randint(-9, 39)

    def percent(self, rng: random.Random) -> int:
        return rng.randint(1, 100)

    def age(self, rng: random.Random) -> int:
        return rng.randint(2, 99)

    def year(self, rng: random.Random) -> int:
        return rng.randint(1900, 2029)

    def price(self, rng: random.Random) -> int | float:
        return round(rng.uniform(1, 900), 2) if rng.random() < 0.6 else rng.randint(1, 900)

    def noun(self, rng: random.Random) -> str:
        return self.listed_or_new(NOUNS, 0.5, rng)

    def job(self, rng: random.Random) -> str:
        return self.listed_or_new(JOBS, 0.3, rng)

    def company(self, rng: random.Random) -> str:
        word = self.listed_or_new(COMPANIES, 0.4, rng)
        return word[0].upper() + word[1:]

    def product(self, rng: random.Random) -> str:
        return self.listed_or_new(PRODUCTS, 0.35, rng)

    def event(self, rng: random.Random) -> str:
        return (
            f"{self.made_up(rng)} {rng.choice(('party', 'meeting', 'evening'))}"
            if rng.random() < 0.3
            else self.part(EVENTS, rng)
        )

    def item(self, rng: random.Random) -> str:
        return self.listed_or_new(ITEMS, 0.35, rng)

    def language(self, rng: random.Random) -> str:
        return rng.choice(listed(LANGUAGES))

    def currency(self, rng: random.Random) -> str:
        return rng.choice(listed(CURRENCIES))

    def unit(self, rng: random.Random) -> str:
        return rng.choice(listed(UNITS))

    def room(self, rng: random.Random) -> str:
        return rng.choice(listed(ROOMS))

    def sky(self, rng: random.Random) -> str:
        return rng.choice(listed(SKIES))

    def state(self, rng: random.Random) -> str:
        return rng.choice(listed(STATES))

    def thing(self, rng: random.Random) -> str:
        return self.part(THINGS, rng) if rng.random() < 0.5 else self.company(rng)

    def place(self, rng: random.Random) -> str:
        return self.country(rng) if rng.random() < 0.4 else self.city(rng)

    def task(self, rng: random.Random) -> str:
        verb = rng.choice(("buy", "clean", "fix", "call", "paint", "visit", "order", "sell"))
        return f"{verb} {rng.choice((self.item, self.subject, self.first))(rng)}"

    def sign(self, rng: random.Random) -> str:
        return rng.choice(listed(SIGNS))
