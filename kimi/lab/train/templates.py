"""The fixed texts from which word problems are made.

Order matters: the held-out rule hashes a template's position, and the generator draws by position,
so a line moved or inserted changes every published score.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """One way to ask.

    Attributes:
      kinds: operation strings this text may be asked with. "+-" means first a + b, then minus c;
        one character is a single step. With several kinds one is drawn at random.
      text: the question, with fields for the numbers {a} {b} {c}, the operators {first} {second}
        and the words {name} {other} {things} {boxes} {place} {He} {him}.
    """

    kinds: tuple[str, ...]
    text: str


# Left to right these are also right by the usual precedence, so the bare expressions use no others.
MIXED_TWO_STEP = ("++", "+-", "-+", "--", "*+", "*-")
MIXED_ONE_STEP = ("+", "-", "*")

THINGS = (
    "apples pears books pencils marbles stamps coins shells cookies stickers cards balls "
    "flowers eggs oranges candles buttons beads plums cherries stones toys cups kites nuts "
    "ribbons carrots lemons muffins keys"
).split()
BOXES = "boxes bags baskets jars crates trays packs bowls shelves drawers".split()
PLACES = "market shop park school farm library garden beach fair museum station lake".split()

TEMPLATES = (
    Template(
        ("++",),
        "{name} has {a} {things}. {He} buys {b} more {things} and then finds {c} {things} at the "
        "{place}. How many {things} does {name} have now?",
    ),
    Template(
        ("++",),
        "{name} picked {a} {things} on Monday, {b} {things} on Tuesday and {c} {things} on "
        "Wednesday. How many {things} did {name} pick in all?",
    ),
    Template(
        ("++",),
        "There are {a} {things} in the first box, {b} {things} in the second box and {c} {things} "
        "in the third box. How many {things} are there altogether?",
    ),
    Template(
        ("++",),
        "{name} has {a} {things}, {other} has {b} {things} and their friend has {c} {things}. How "
        "many {things} do they have together?",
    ),
    Template(
        ("+-",),
        "{name} has {a} {things}. {other} gives {name} {b} more {things}. Then {name} loses {c} "
        "{things}. How many {things} does {name} have left?",
    ),
    Template(
        ("+-",),
        "A shop had {a} {things}. In the morning {b} more {things} arrived. By evening {c} "
        "{things} were sold. How many {things} were left in the shop?",
    ),
    Template(
        ("+-",),
        "{name} found {a} {things} at the {place} and {b} {things} at home. {He} gave {c} "
        "{things} to {other}. How many {things} does {name} still have?",
    ),
    Template(
        ("+-",),
        "{name} and {other} have {a} and {b} {things}. Together they give away {c} {things}. How "
        "many {things} remain?",
    ),
    Template(
        ("-+",),
        "{name} had {a} {things}. {He} gave {b} {things} to {other}, and then bought {c} new "
        "{things}. How many {things} does {name} have now?",
    ),
    Template(
        ("-+",),
        "There were {a} people on a bus. At the {place} {b} people got off and {c} people got on. "
        "How many people are on the bus now?",
    ),
    Template(
        ("-+",),
        "A farmer had {a} {things}. {b} of them were sold at the {place}. The next day {c} more "
        "{things} came in. How many {things} does the farmer have?",
    ),
    Template(
        ("--",),
        "{name} had {a} {things}. {He} gave {b} {things} to {other} and lost {c} {things}. How "
        "many {things} are left?",
    ),
    Template(
        ("--",),
        "A box holds {a} {things}. {name} takes {b} {things} and {other} takes {c} {things}. How "
        "many {things} are still in the box?",
    ),
    Template(
        ("--",),
        "{name} baked {a} muffins. The children ate {b} muffins and {c} muffins were burnt. How "
        "many good muffins are left?",
    ),
    Template(
        ("*+",),
        "{name} has {a} {boxes} with {b} {things} in each. {He} also has {c} loose {things}. How "
        "many {things} does {name} have in total?",
    ),
    Template(
        ("*+",),
        "{name} buys {a} {boxes} of {things}. Each holds {b} {things}. {other} gives {him} {c} "
        "more {things}. How many {things} does {name} have?",
    ),
    Template(
        ("*+",),
        "Each of {a} children brings {b} {things} to the {place}. The teacher brings {c} "
        "{things}. How many {things} are there in all?",
    ),
    Template(
        ("*-",),
        "{name} has {a} {boxes} with {b} {things} in each. {He} gives {c} {things} to {other}. "
        "How many {things} does {name} have left?",
    ),
    Template(
        ("*-",),
        "A farmer filled {a} {boxes} with {b} {things} each. At the {place} {c} {things} were "
        "sold. How many {things} are left?",
    ),
    Template(
        ("*-",),
        "{name} reads {b} pages a day for {a} days. {other} reads {c} pages fewer in all. How "
        "many pages does {other} read?",
    ),
    Template(
        ("+*",),
        "{name} has {a} red {things} and {b} blue {things}. {other} has {c} times as many "
        "{things}. How many {things} does {other} have?",
    ),
    Template(
        ("+*",),
        "On each of {c} days {name} finds {a} {things} in the morning and {b} {things} in the "
        "evening. How many {things} does {name} find in total?",
    ),
    Template(
        ("-*",),
        "{name} had {a} {things} and lost {b} of them. {other} has {c} times as many {things} as "
        "{name} has now. How many {things} does {other} have?",
    ),
    Template(
        ("-*",),
        "A tray holds {a} {things}, but {b} of them are bad. How many good {things} are on {c} "
        "such trays?",
    ),
    Template(
        ("**",),
        "There are {a} rooms. Each room has {b} {boxes} and each of them holds {c} {things}. How "
        "many {things} are there in all?",
    ),
    Template(
        ("+",),
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    ),
    Template(
        ("-",),
        "{name} has {a} {things} and gives {b} to {other}. How many {things} are left?",
    ),
    Template(
        ("*",),
        "{name} has {a} {boxes} with {b} {things} in each. How many {things} are there in all?",
    ),
    Template(MIXED_TWO_STEP, "What is {a} {first} {b} {second} {c}?"),
    Template(MIXED_TWO_STEP, "Compute {a} {first} {b} {second} {c}."),
    Template(MIXED_ONE_STEP, "What is {a} {first} {b}?"),
)
