"""Questions that have nothing to do with LLM serving, and the one answer to them."""

import random

from tools.demo_model.skills.families import FAMILIES
from tools.demo_model.skills.values import Values, listed
from tools.demo_model.templates import DIFF, DO, HOW, SIMPLE, TELL, WHAT, WHY, fill

FALLBACK = (
    "I do not know about that. I am a small demo model that only answers questions about LLM serving;"
    ' try "What is TTFT?" or "Tell me the life of a request."'
)

NOUNS = """
apple banana bread cheese pizza coffee tea soup rice sugar salt pepper tomato onion garlic carrot
lemon cake cookie chocolate honey butter egg fish chicken beef pasta sushi wine beer juice cat dog
horse cow sheep goat lion tiger elephant giraffe monkey rabbit mouse bird eagle penguin duck frog
snake turtle whale dolphin shark spider bee butterfly ant dinosaur dragon unicorn tree flower rose
grass forest mountain river ocean lake island desert beach volcano earthquake storm rain snow wind
rainbow cloud sun moon star planet Mars Jupiter galaxy comet rocket astronaut car bicycle train
airplane bus ship boat bridge road tunnel house castle tower church museum library school
university hospital hotel restaurant kitchen garden window door table chair bed lamp mirror clock
watch phone camera television radio guitar piano violin drum song opera jazz dance ballet film
theatre novel poem painting sculpture photograph football basketball tennis golf chess swimming
skiing yoga marathon boxing cricket poker holiday birthday wedding Christmas Easter Halloween
doctor teacher lawyer farmer baker pilot soldier king queen president lottery tax mortgage
inflation bank money gold silver diamond oil coal nuclear fusion photosynthesis gravity evolution
DNA vitamin virus bacteria cancer diabetes headache fever sleep dream love friendship happiness
anger philosophy religion history geography algebra calculus geometry chemistry biology psychology
economics democracy revolution war peace treaty France Germany Spain Italy Japan China India
Brazil Canada Mexico Egypt Australia Paris London Berlin Tokyo Rome Madrid Vienna New-York
Shakespeare Einstein Napoleon Mozart Cleopatra Picasso Newton Beethoven shirt trousers shoes hat
umbrella ring necklace perfume soap shampoo toothbrush towel blanket pillow sofa carpet curtain
candle fireplace ladder hammer screwdriver saw nail glue paint brick concrete steel plastic glass
paper wood leather cotton wool silk Excel Photoshop Bluetooth Minecraft JavaScript COBOL Fortran
HTML blockchain Bitcoin robot drone laser microscope telescope thermometer battery magnet engine
wheel brake tyre passport visa suitcase tent campfire compass map backpack
""".split()  # noqa: SIM905
TEST_NOUNS = """
saxophone pancake kangaroo Iceland waterfall zebra cinema pumpkin sandwich archaeology hurricane
Portugal Michelangelo dentist origami submarine lighthouse mushroom trampoline penicillin
""".split()  # noqa: SIM905

FREE = """What is the capital of France?
What is the capital of Peru?
Who wrote Hamlet?
Who is the president of the United States?
What is 2 + 2?
What is 17 times 23?
Write a poem about the sea.
Write a story about a little dog.
Write a Python function that sorts a list.
Translate good morning into French.
How old are you?
What time is it?
What day is today?
What is the weather like today?
How is the weather in London?
Give me a recipe for pancakes.
How do I cook rice?
Who won the world cup?
How tall is Mount Everest?
How far away is the moon?
Recommend a good book.
What film should I watch tonight?
What is the meaning of life?
Do you love me?
Where do you live?
What is your favourite colour?
Solve x squared equals nine.
Fix the bug in my code.
Summarise this article for me.
Write an email to my boss.
Plan a trip to Rome for three days.
How do I lose weight?
Is there life on Mars?
Why is the sky blue?
How do airplanes fly?
How many legs does a spider have?
What is the largest animal?
When did the second world war end?
asdf
qwertz uiop
lorem ipsum dolor sit amet
1 2 3 4 5
blah blah blah
Sing me a song.
Count to ten.
Say the alphabet.
Tell me a joke.
Tell me a fairy tale.
Tell me something about history.
Is it raining?
Is it cold outside?
Will it snow tomorrow?
Can you drive?
Can you play chess with me?
Are you hungry?
Do you sleep at night?
Write a haiku about autumn.
Write a limerick.
Write a letter to my landlord.
Write a birthday card.
Draw me a picture of a house.
Name three rivers in Africa.
Name a famous painter.
List the months of the year.
Spell the word necessary.
How do I fix a flat tyre?
How do I change a light bulb?
How much does a house cost?
How long does it take to boil an egg?
How many days are in a year?
Which team won last night?
Which phone should I buy?
Who invented the telephone?
Who was the first person in space?
Where is the nearest station?
Where can I park?
When is Easter this year?
When does the shop open?
What should I cook for dinner?
What should I wear today?
What is your phone number?
What is the square root of 81?
Why do leaves turn brown?
Why is the sea salty?
Should I learn to swim?
Should I buy or rent a flat?
Translate this sentence into German.
Explain photosynthesis to a child.
Explain the rules of football.
Compare summer and winter.
Give me ten names for a cat.
Help me with my homework.
I lost my keys.
I am bored.
I have a headache.
My car does not start.
Turn on the lights.
Play some music.
Book a table for two.
What do you think about politics?
Convert ten miles to kilometres.
What is the square root of 144?
Which stocks should I buy?
Am I ill?
Should I change my job?""".splitlines()
TEST_FREE = """What is the capital of Norway?
Who painted the Mona Lisa?
Write a song about my grandmother.
How do I bake bread?
What is 12 + 30?
Which is the longest river in the world?
Translate thank you into Spanish.
How many people live in Berlin?
Why do cats purr?
Can you book a flight for me?""".splitlines()

SYLLABLES = """
ba blo cra dri el fen gur hop ix jum kla lor mip nax ol pim qua rus sti tog ulk vex wim yor zan
""".split()  # noqa: SIM905


def made_up_word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


# Forms with a free noun: the fixed list above must not be all that leads to the fallback.
SLOTTED = (
    "Write a poem about {}.",
    "Write a story about {}.",
    "Tell me a joke about {}.",
    "Sing me a song about {}.",
    "Where can I buy {}?",
    "How much does {} cost?",
    "Who invented {}?",
    "What colour is {}?",
    "How do I cook {}?",
    "Do you like {}?",
    "Have you ever seen {}?",
    "Is {} dangerous?",
    "Can I eat {}?",
    "Draw {}.",
    "Translate {} into Italian.",
    "Which {} is the best?",
)


class OffTopic:
    """Asks about everyday nouns, noun pairs and made-up words in the templates of the topics."""

    def __init__(self, nouns: list[str] | None = None, free: list[str] | None = None) -> None:
        self.nouns = nouns or NOUNS
        self.free = free or FREE

    def noun(self, rng: random.Random) -> str:
        roll = rng.random()
        word = made_up_word(rng) if roll < 0.3 else rng.choice(self.nouns).replace("-", " ")
        if 0.3 <= roll < 0.42:
            return f"{word} {rng.choice(self.nouns).lower()}"
        return word if roll > 0.75 else f"{rng.choice(('a', 'the', 'my'))} {word}"

    def question(self, rng: random.Random) -> str:
        if rng.random() < 0.15:
            return rng.choice(self.free)
        if rng.random() < 0.15:
            return Values().fill(rng.choice(listed(rng.choice(FAMILIES).questions)), {}, rng)
        noun, other = self.noun(rng), self.noun(rng)
        if rng.random() < 0.12:
            return rng.choice(SLOTTED).format(noun)
        roll = rng.random()
        if roll < 0.45:
            tag = rng.choice(("what", "what", "what", "how", "why"))
            return rng.choice(list(fill(WHAT[tag], "what", noun)))
        if roll < 0.55:
            return rng.choice(list(fill(SIMPLE, "simple", noun)))
        if roll < 0.65:
            return rng.choice(list(fill(DIFF, "diff", f"{noun}|{other}")))
        verb = rng.choice(
            [
                "need",
                "use",
                "like",
                "have",
                "cost",
                "break",
                "stop",
                "move",
                "change",
                "become",
                "buy",
            ]
        )
        if roll < 0.77:
            clause = f"does {noun} {verb} {other}|{noun} {verb}s {other}"
            return rng.choice(list(fill(WHY, "why", clause)))
        if roll < 0.87:
            clause = f"does {noun} {verb} {other}|{noun} {verb}s {other}"
            return rng.choice(list(fill(HOW, "how", clause)))
        if roll < 0.94:
            return rng.choice(list(fill(DO, "do", f"{verb} {noun}")))
        return rng.choice(list(fill(TELL, "tell", f"the life of {noun}")))
