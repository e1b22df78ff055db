"""`holdfast topic`: make topics, subscribe to them, and see to their keys."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import session as sessions
from holdfast.cli.output import AsJson, console, plain, print_json, print_list, print_table
from holdfast.device.ipc_administration import SomeTopicArguments, TopicArguments
from holdfast.device.topics import KeyState

app = typer.Typer(help="Make topics, subscribe to them, grant their keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(topic: Name, as_json: AsJson = False) -> None:
    """Make a topic, and its first key."""
    made = sessions.administer("create_topic", TopicArguments(topic=topic), as_json=as_json)
    if as_json:
        print_json(made)
    else:
        console().print(f"made topic {topic}; subscribe to it to receive its messages")


@app.command()
def subscribe(topic: Name, as_json: AsJson = False) -> None:
    """Ask for what is posted to a topic. It begins when a keeper of the topic has granted you its key."""
    found = sessions.administer("subscribe", TopicArguments(topic=topic), as_json=as_json)
    if as_json:
        print_json(found)
    elif found["key"] == KeyState.READY:
        console().print(f"subscribed to {topic}")
    else:
        console().print(
            f"subscribed to {topic}; messages come once its creator or an admin has granted you the key: see `topic list`"
        )


@app.command()
def unsubscribe(topic: Name, as_json: AsJson = False) -> None:
    """Ask for no more of a topic. Its key changes, so that what follows is not for you."""
    found = sessions.administer("unsubscribe", TopicArguments(topic=topic), as_json=as_json)
    if as_json:
        print_json(found)
    else:
        console().print(f"no longer subscribed to {topic}")


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """The topics of the mesh, who subscribes to them, and whether you have their keys."""
    found = sessions.administer("list_topics", as_json=as_json)
    if as_json:
        print_list(found)
        return
    rows = [(plain(one["topic"]), str(one["key_epoch"]), one["key"], _subscribers(one)) for one in found]
    print_table(("topic", "epoch", "you", "subscribers"), rows, right=("epoch",))


@app.command()
def grant(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="One topic; all that you keep if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grant keys to all who wait for one, and change the keys of topics that somebody has left."""
    deeds = sessions.administer("grant", SomeTopicArguments(topic=topic), as_json=as_json)
    told = [deed.pop("told") for deed in deeds]
    if as_json:
        print_list(deeds)
        return
    for text in told:
        console().print(plain(text))
    if not deeds:
        console().print("nobody waits for a key")


def _subscribers(topic: Mapping[str, Any]) -> str:
    return ", ".join(
        plain(one["name"]) + ("" if one["has_key"] else " (waiting for key)") for one in topic["subscribers"]
    )
