"""`holdfast topic`: make topics, subscribe to them, and see to their keys."""

from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import session as sessions
from holdfast.cli.output import AsJson, console, print_json, print_table
from holdfast.cli.session import plain
from holdfast.device import topics
from holdfast.device.mesh import NotThatOne, Session
from holdfast.device.topics import KeyState
from holdfast.wire.client import Topic

app = typer.Typer(help="Make topics, subscribe to them, grant their keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(topic: Name, as_json: AsJson = False) -> None:
    """Make a topic, and its first key."""

    async def work(session: Session) -> None:
        await topics.create(session, topic)
        found = topics.find(session, topic)
        if as_json:
            print_json({"topic": topic, "key_epoch": found.key_epoch})
        else:
            console().print(f"topic {topic} is there; subscribe to it to receive what is posted")

    sessions.in_mesh(work, as_json=as_json)


@app.command()
def subscribe(topic: Name, as_json: AsJson = False) -> None:
    """Ask for what is posted to a topic. It begins when a keeper of the topic has granted you its key."""

    async def work(session: Session) -> None:
        await topics.subscribe(session, topic)
        await topics.tend(session, topic)  # a keeper grants it to itself
        await topics.collect(session)
        state = topics.key_state(session, topics.find(session, topic))
        if as_json:
            print_json({"topic": topic, "subscribed": True, "key": state.value})
        elif state is KeyState.READY:
            console().print(f"subscribed to {topic}")
        else:
            console().print(f"subscribed to {topic}; {state}: the topic's creator or an admin grants it next time")

    sessions.in_mesh(work, as_json=as_json)


@app.command()
def unsubscribe(topic: Name, as_json: AsJson = False) -> None:
    """Ask for no more of a topic. Its key changes, so that what follows is not for you."""

    async def work(session: Session) -> None:
        await topics.unsubscribe(session, topic)
        if as_json:
            print_json({"topic": topic, "subscribed": False})
        else:
            console().print(f"no longer subscribed to {topic}")

    sessions.in_mesh(work, as_json=as_json)


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """The topics of the mesh, who subscribes to them, and whether you have their keys."""

    async def work(session: Session) -> None:
        await topics.collect(session)
        if as_json:
            sessions.print_list([_fields(session, topic) for topic in session.mesh.topics])
            return
        rows = [
            (plain(t.topic), str(t.key_epoch), topics.key_state(session, t).value, _subscribers(session, t))
            for t in session.mesh.topics
        ]
        print_table(("topic", "epoch", "you", "subscribers"), rows, right=("epoch",))

    sessions.in_mesh(work, as_json=as_json)


@app.command()
def grant(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="One topic; all that you keep if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grant keys to all who wait for one, and change the keys of topics that somebody has left."""

    async def work(session: Session) -> None:
        if topic is not None:
            topics.check_keeper(session, topics.find(session, topic))
        deeds = await topics.tend(session, topic)
        if as_json:
            sessions.print_list([msgspec.to_builtins(deed) for deed in deeds])
            return
        for deed in deeds:
            console().print(sessions.told_deed(session, deed))
        if not deeds:
            console().print("nobody waits for a key")

    sessions.in_mesh(work, as_json=as_json)


def _fields(session: Session, topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "key_epoch": topic.key_epoch,
        "created_by": topic.created_by,
        "subscribed": topics.is_subscribed(session, topic),
        "key": topics.key_state(session, topic).value,
        "subscribers": [
            {"member": s.member, "name": _name(session, s.member), "has_key": s.has_key} for s in topic.subscribers
        ],
    }


def _subscribers(session: Session, topic: Topic) -> str:
    return ", ".join(
        plain(_name(session, s.member)) + ("" if s.has_key else " (waiting for key)") for s in topic.subscribers
    )


def _name(session: Session, member: str) -> str:
    try:
        return session.member(member).name
    except NotThatOne:
        return member
