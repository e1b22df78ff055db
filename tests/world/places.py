"""Who lives where: the relays of a world, the homes of each one's mesh, and which relays keep whose documents.

A home is in one mesh, at one relay. Its author's documents are kept there, where a member vouches for the author, and at any
further relay that takes those of every author. So relays share nothing but people: ada has a home in each mesh, and homes that
follow several relays carry documents from one to the other.
"""

import random
from dataclasses import dataclass

PORT = 7447  # of the first relay; the others follow it

RELAYS = ("north", "south", "west")
OPEN = frozenset({"south", "west"})  # relays that take documents of every author


@dataclass(frozen=True)
class Mesh:
    """Homes that send each other messages through one relay. They share one author."""

    relay: str
    founder: str
    others: tuple[str, ...]
    changing: str  # of the others: takes other keys, and may be put out

    @property
    def members(self) -> tuple[str, ...]:
        return (self.founder, *self.others)


MESHES = (Mesh("north", "ada", ("bo", "cy"), "cy"), Mesh("south", "ada-south", ("dee",), "dee"))
FURTHER = {
    "ada": ("south",),
    "bo": ("south", "west"),
    "ada-south": ("west",),
    "dee": ("west",),
}  # relays that keep a home's documents beside its own; each has two homes of a mesh, so that one may bring what the other lacks


@dataclass(frozen=True)
class Places:
    """What there is in one world."""

    relays: tuple[str, ...]

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(mesh for mesh in MESHES if mesh.relay in self.relays)

    def followed(self, home: str) -> tuple[str, ...]:
        """The relays that keep a home's documents, its own first."""
        own = next(mesh.relay for mesh in self.meshes if home in mesh.members)
        return (own, *(relay for relay in FURTHER.get(home, ()) if relay in self.relays))


def choose(seed: int) -> Places:
    """One relay, two or three."""
    return Places(RELAYS[: random.Random(f"places {seed}").randint(1, len(RELAYS))])
