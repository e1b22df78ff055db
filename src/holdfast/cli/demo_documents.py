"""The demo's documents: one note in two homes, edited in both while neither can know of the other."""

import signal
from pathlib import Path

from holdfast.cli.demo_world import World, hold

NOTE = "supper on friday"
TEXT = "soup for four people"  # long enough that no sealed text has it in it by chance
OURS, THEIRS, BOTH = "soup and bread", "soup and cheese", "soup, bread and cheese"


def share_a_note(world: World) -> str:
    with world.notes(world.alice) as alice, world.notes(world.bob) as bob:
        author = alice.init().npub
        alice.put(NOTE, TEXT)
        alice.share("bob")
        world.until(lambda: bob.feed().shared, "Alice's key has not reached Bob")
        hold(bob.init("alice").npub == author, "Bob's home keeps the documents of another author")
        world.until(lambda: bob.documents().documents, "the note has not reached Bob")
        found = bob.document(NOTE)
    hold(found.body == TEXT, f"Bob reads {found.body!r}")
    told = [path.name for path in world.data.iterdir() if path.is_file() and _has(path, NOTE, TEXT)]
    hold(not told, f"the relay knows of it: {told}")
    return f"{NOTE!r} is the same in both homes, and the relay cannot read it"


def _has(path: Path, *words: str) -> bool:
    content = path.read_bytes()
    return any(word.encode() in content for word in words)


def disagree(world: World) -> str:
    """Without a relay both edit; with it both see both versions, and neither is lost."""
    world.stop_relay(signal.SIGTERM)
    with world.notes(world.alice) as alice, world.notes(world.bob) as bob:
        alice.put(NOTE, OURS)
        bob.put(NOTE, THEIRS)
        world.start_relay()
        for name, home in (("Alice", alice), ("Bob", bob)):
            world.until(lambda home=home: home.document(NOTE).status == "conflict", f"{name} sees no conflict")  # type: ignore[misc]
            found = sorted(str(version.body) for version in home.document(NOTE).versions)
            hold(found == [OURS, THEIRS], f"{name} sees {found}")
        world.run(world.bob, "feed", "resolve", NOTE, BOTH)
        world.until(lambda: alice.document(NOTE).status == "ok", "Alice has not heard of the resolution")
        said = [home.document(NOTE).body for home in (alice, bob)]
    hold(said == [BOTH, BOTH], f"they read {said}")
    return f"both homes saw both versions; Bob decided, and both read {BOTH!r}"
