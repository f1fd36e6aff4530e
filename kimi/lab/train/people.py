"""Names and pronouns shared by the word problems and the stories."""

from dataclasses import dataclass

# The generators draw by position: the order is part of every seed's meaning.
NAMES = (
    "Mia Tom Anna Ben Lucy Jack Emma Sam Nora Max Ella Leo Ruth Dan Ivy Paul Zoe Adam Lily Noah "
    "Kate Hugo Sara Finn Rosa Eric Jane Owen Clara Luke Amy Carl Dora Evan Fay Gus Hana Ian June "
    "Karl Lena Mark Nina Omar Pia Ray Tina Vera Will Yara"
).split()
_SHE = frozenset(
    "Mia Anna Lucy Emma Nora Ella Ruth Ivy Zoe Lily Kate Sara Rosa Jane Clara Amy Dora Fay Hana "
    "June Lena Nina Pia Tina Vera Yara".split()
)


@dataclass(frozen=True)
class Pronouns:
    """Third-person pronouns as a text needs them; `He` starts a sentence."""

    He: str
    he: str
    his: str
    him: str


def pronouns(name: str) -> Pronouns:
    """The pronouns that go with one of `NAMES`."""
    return (
        Pronouns("She", "she", "her", "her") if name in _SHE else Pronouns("He", "he", "his", "him")
    )
