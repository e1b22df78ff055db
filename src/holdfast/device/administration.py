"""The verbs with which a person administers a mesh, as one table that commands and the daemon share.

A verb works in a session and answers with a plain document. After it the home does its duties in the mesh: it keeps the topic
keys that were granted to it, and grants those that others wait for.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.device import invitation, rotation, topics
from holdfast.device.ipc_administration import (
    Arguments,
    Done,
    InviteArguments,
    RenameArguments,
    SetRoleArguments,
    SomeTopicArguments,
    TopicArguments,
    WhoArguments,
    WithdrawArguments,
)
from holdfast.device.mesh import NotThatOne, Session, check_name
from holdfast.device.publish import PutOff, Settled
from holdfast.device.topics import Deed, Need
from holdfast.protocol import action as actions
from holdfast.protocol import keys
from holdfast.protocol.action import Block, RenameMember, RevokeMember, SetRole, Unblock, WithdrawInvite
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.client import Member, Topic, Unreachable

Verb = Callable[[Session, Any], Awaitable[Any]]


async def run(session: Session, name: str, arguments: Arguments) -> Done:
    """Carry out a verb, then the home's duties in the mesh."""
    notes = [_told_settled(settled) for settled in session.publisher.healed]
    document = await VERBS[name][1](session, arguments)
    notes += await _keep_house(session)
    return Done(document=document, notes=tuple(notes))


def read_arguments(name: str, raw: bytes) -> Arguments:
    """The arguments of a verb, from JSON."""
    if name not in VERBS:
        raise Refused(Refusal.NOT_FOUND, f"there is no such verb; there are {', '.join(VERBS)}")
    try:
        found: Arguments = msgspec.json.decode(raw or b"{}", type=VERBS[name][0])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(Refusal.MALFORMED, f"arguments: {error}") from error
    return found


async def _show_mesh(session: Session, arguments: Arguments) -> dict[str, Any]:
    active = [member for member in session.mesh.members if member.is_active]
    states = [topics.key_state(session, topic) for topic in session.mesh.topics]
    return {
        "mesh": session.mesh.mesh,
        "name": session.mesh.name,
        "relay": session.client.url,
        "member": session.me.member,
        "member_name": session.me.name,
        "role": session.me.role,
        "pubkey": session.device.pubkey,
        "npub": keys.npub(session.device.pubkey),
        "home": str(session.device.home.path),
        "members": len(active),
        "topics": len(states),
        "topics_waiting_for_key": states.count(topics.KeyState.WAITING),
    }


async def _invite(session: Session, arguments: InviteArguments) -> dict[str, Any]:
    text = invitation.write(await session.invite(arguments.role, arguments.expires_at))
    return {"invite": text, "role": arguments.role.value, "expires_at": arguments.expires_at}


async def _withdraw(session: Session, arguments: WithdrawArguments) -> dict[str, Any]:
    await session.ask(WithdrawInvite(key=arguments.key))
    return {"withdrawn": arguments.key}


async def _list_members(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    return [_member_fields(session, member) for member in session.mesh.members]


async def _revoke(session: Session, arguments: WhoArguments) -> dict[str, Any]:
    member = session.find(arguments.who)
    is_me = member.member == session.membership.member
    if is_me:
        await session.leave()
    elif member.is_active:
        await session.ask(RevokeMember(member=member.member))
    return {"member": member.member, "name": member.name, "status": "revoked", "is_me": is_me}


async def _rename(session: Session, arguments: RenameArguments) -> dict[str, Any]:
    check_name(arguments.name, "a member's name")
    member = session.me if arguments.who is None else session.find(arguments.who)
    if member.name != arguments.name:
        await session.ask(RenameMember(member=member.member, name=arguments.name))
    if member.member == session.membership.member:
        session.renamed(arguments.name)
    return {"member": member.member, "name": arguments.name, "was": member.name}


async def _set_role(session: Session, arguments: SetRoleArguments) -> dict[str, Any]:
    member = session.find(arguments.who)
    if not member.is_active or member.role != arguments.role:
        await session.ask(SetRole(member=member.member, role=arguments.role))
    return {"member": member.member, "name": member.name, "role": arguments.role.value}


async def _rotate_key(session: Session, arguments: Arguments) -> dict[str, Any]:
    rotated = await rotation.rotate(session)
    return {**msgspec.to_builtins(rotated), "npub": keys.npub(rotated.pubkey)}


async def _block(session: Session, arguments: WhoArguments) -> dict[str, Any]:
    member = session.find(arguments.who)
    if member.member == session.membership.member:
        raise Refused(Refusal.MALFORMED, "nobody can block themselves")
    await session.ask(Block(member=member.member))
    return {"member": member.member, "name": member.name, "blocked": True}


async def _unblock(session: Session, arguments: WhoArguments) -> dict[str, Any]:
    member = session.find(arguments.who)
    await session.ask(Unblock(member=member.member))
    return {"member": member.member, "name": member.name, "blocked": False}


async def _create_topic(session: Session, arguments: TopicArguments) -> dict[str, Any]:
    await topics.create(session, arguments.topic)
    return {"topic": arguments.topic, "key_epoch": topics.find(session, arguments.topic).key_epoch}


async def _subscribe(session: Session, arguments: TopicArguments) -> dict[str, Any]:
    await topics.subscribe(session, arguments.topic)
    await topics.tend(session, arguments.topic)  # a keeper grants it to itself
    await topics.collect(session)
    state = topics.key_state(session, topics.find(session, arguments.topic))
    return {"topic": arguments.topic, "subscribed": True, "key": state.value}


async def _unsubscribe(session: Session, arguments: TopicArguments) -> dict[str, Any]:
    await topics.unsubscribe(session, arguments.topic)
    return {"topic": arguments.topic, "subscribed": False}


async def _list_topics(session: Session, arguments: Arguments) -> list[dict[str, Any]]:
    await topics.collect(session)
    return [_topic_fields(session, topic) for topic in session.mesh.topics]


async def _grant(session: Session, arguments: SomeTopicArguments) -> list[dict[str, Any]]:
    if arguments.topic is not None:
        topics.check_keeper(session, topics.find(session, arguments.topic))
    deeds = await topics.tend(session, arguments.topic)
    return [{**msgspec.to_builtins(deed), "told": told_deed(session, deed)} for deed in deeds]


VERBS: Mapping[str, tuple[type[Arguments], Verb]] = {
    "show_mesh": (Arguments, _show_mesh),
    "invite": (InviteArguments, _invite),
    "withdraw": (WithdrawArguments, _withdraw),
    "list_members": (Arguments, _list_members),
    "revoke": (WhoArguments, _revoke),
    "rename": (RenameArguments, _rename),
    "set_role": (SetRoleArguments, _set_role),
    "rotate_key": (Arguments, _rotate_key),
    "block": (WhoArguments, _block),
    "unblock": (WhoArguments, _unblock),
    "create_topic": (TopicArguments, _create_topic),
    "subscribe": (TopicArguments, _subscribe),
    "unsubscribe": (TopicArguments, _unsubscribe),
    "list_topics": (Arguments, _list_topics),
    "grant": (SomeTopicArguments, _grant),
}


async def _keep_house(session: Session) -> list[str]:
    """Keep keys granted to this device and grant keys to others; returns notes. Failures are left to the next verb."""
    try:
        await topics.collect(session)
        return [told_deed(session, deed) for deed in await topics.tend(session)]
    except (Refused, PutOff, Unreachable) as trouble:
        return [f"keys of topics could not all be seen to now ({trouble}); the next command tries again"]


def told_deed(session: Session, deed: Deed) -> str:
    """What a keeper did for a topic, in words for people."""
    names = ", ".join(session.member(member).name for member in deed.members) or "nobody else"
    if deed.did is Need.GRANT:
        return f"granted the key of topic {deed.topic} to {names}"
    return f"topic {deed.topic} has a new key (epoch {deed.key_epoch}), granted to {names}"


def _told_settled(settled: Settled) -> str:
    what = actions.name(settled.action)
    if settled.is_done:
        return f"an earlier {what} that had got no answer is done"
    return f"an earlier {what} was given up: {settled.operation.last_error or settled.said.says}"


def _member_fields(session: Session, member: Member) -> dict[str, Any]:
    return {
        "member": member.member,
        "pubkey": member.pubkey,
        "name": member.name,
        "role": member.role,
        "status": member.status,
        "is_me": member.member == session.membership.member,
    }


def _topic_fields(session: Session, topic: Topic) -> dict[str, Any]:
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


def _name(session: Session, member: str) -> str:
    try:
        return session.member(member).name
    except NotThatOne:
        return member
