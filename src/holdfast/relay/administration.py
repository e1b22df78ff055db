"""Carrying out administration: who may do what, and what it changes.

Each action is a row of `ACTIONS`: the standing that it needs and the function that carries it out. A function checks
everything before its first write, because a refusal must leave nothing in the shared transaction. Signatures inside
actions were checked before, outside the writer.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, get_args

import msgspec

from holdfast.protocol import action as actions
from holdfast.protocol.action import (
    Action,
    AddMember,
    AdmitAuthor,
    AdvanceTopicKey,
    Block,
    CreateMesh,
    CreateTopic,
    DismissAuthor,
    GrantTopicKey,
    Invite,
    Join,
    RegisterConsumer,
    RemoveConsumer,
    RenameMember,
    RevokeMember,
    Role,
    RotateMemberKey,
    SetRole,
    Subscribe,
    Unblock,
    Unsubscribe,
    WithdrawInvite,
)
from holdfast.protocol.administration import RELAY, Administration, accept_counter
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import total
from holdfast.relay import closing, consumers
from holdfast.relay.directory import Directory
from holdfast.relay.offer import Offer
from holdfast.relay.settings import MeshSettings
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "administration.sql")


class Standing(StrEnum):
    """The standing that a signer needs for an action."""

    ANYBODY = "anybody"  # the action itself proves the right, such as a join signed by an invitation
    FOUNDER = "founder"  # an operator, somebody vouched for by one, or anybody on the relay's own machine
    OPERATOR = "operator"
    ADMIN = "admin"  # of the mesh, or an operator
    MEMBER = "member"
    ONESELF_OR_ADMIN = "oneself or admin"
    KEEPER = "keeper"  # of a topic's key: the topic's creator, or an admin


class Who(msgspec.Struct, frozen=True):
    """The signer of an administration event, as the relay knows it."""

    pubkey: str
    member: str | None  # None unless this is the current key of an active member
    role: str | None
    is_operator: bool
    is_local: bool

    @property
    def is_admin(self) -> bool:
        return self.is_operator or self.role == Role.ADMIN


class Office:
    """Carries out one administration event inside the writer's transaction."""

    def __init__(
        self, transaction: Transaction, now: int, limits: MeshSettings, operators: frozenset[str], local: bool
    ) -> None:
        self._transaction = transaction
        self.now = now
        self.limits = limits
        self._operators = operators
        self._local = local

    def carry_out(self, offer: Offer, directory: Directory) -> str:
        """Carry out the action or refuse it; returns the name under which the sender's sends are stored from now on."""
        said = offer.said
        assert isinstance(said, Administration)  # noqa: S101 - the accept asks for nothing else
        self.mesh = said.head.mesh
        self.who = self._identify(offer, directory)
        self._check_mesh(said.action, directory)
        standing, do = ACTIONS[type(said.action)]
        self._check_counter(offer, said.counter)
        self._check_standing(standing, said.action)
        do(self, said.action)
        self.run("set_counter", signer=offer.event.pubkey, counter=said.counter)
        self.run("revise")
        return _new_member(said.action, offer.event.pubkey) or directory.sender(offer)

    def _identify(self, offer: Offer, directory: Directory) -> Who:
        pubkey = offer.event.pubkey
        signer = directory.signers.get((self.mesh, pubkey))
        member = signer if signer and signer.is_in_force else None
        return Who(
            pubkey=pubkey,
            member=member.member if member else None,
            role=member.role if member else None,
            is_operator=self.is_operator(pubkey),
            is_local=self._local,
        )

    def _check_mesh(self, action: Action, directory: Directory) -> None:
        """Refuse what is done in a mesh that nobody has founded: an operator, who may do it in any, may misspell one."""
        if not isinstance(action, CreateMesh) and self.mesh != RELAY and self.mesh not in directory.meshes:
            raise Refused(Refusal.MESH_UNKNOWN, f"there is no mesh {self.mesh}")

    def _check_counter(self, offer: Offer, counter: int) -> None:
        found = self.rows("counter", signer=offer.event.pubkey)
        accept_counter(found[0][0] if found else None, counter)

    def _check_standing(self, standing: Standing, action: Action) -> None:
        if not _HAS_STANDING[standing](self, action):
            raise Refused(Refusal.NOT_PERMITTED, f"{actions.name(action)} is only for: {standing}")

    def rows(self, statement: str, /, **parameters: Value) -> list[Row]:
        return self._transaction.rows(_SQL[statement], {"mesh": self.mesh, "now": self.now, **parameters})

    def run(self, statement: str, /, **parameters: Value) -> int:
        return self._transaction.run(_SQL[statement], {"mesh": self.mesh, "now": self.now, **parameters})

    def check_room(self, setting: str, most: int, count: int) -> None:
        """Refuse one more where there are as many as may be, or more because more might be once."""
        if count >= most:
            raise Refused(Refusal.MESH_FULL, f"there are {count}, and {setting} is {most}")

    def drop_queue(self, member: str) -> None:
        closing.drop_queue(self._transaction, self.now, self.mesh, member)

    def register(self, action: RegisterConsumer) -> None:
        log_id = bytes.fromhex(action.log_id)
        consumers.move(self._transaction, self.now, action.consumer, log_id, action.seq)

    def remove(self, action: RemoveConsumer) -> None:
        if not self._transaction.run(_SQL["remove_consumer"], {"name": action.consumer}):
            raise Refused(Refusal.SUBJECT_UNKNOWN, f"there is no consumer {action.consumer}")

    def is_operator(self, key: str | None) -> bool:
        return key in self._operators

    def active(self, member: str) -> Row:
        """The (status, role, name, key) of a member who is not revoked."""
        found = self.rows("member", member=member)
        if not found or found[0][0] != "active":
            raise Refused(Refusal.SUBJECT_UNKNOWN, f"member {member} is not in the mesh")
        return found[0]

    def topic(self, topic: str) -> Row:
        """The (key_epoch, created_by, key_id) of a topic."""
        found = self.rows("topic", topic=topic)
        if not found:
            raise Refused(Refusal.SUBJECT_UNKNOWN, f"there is no topic {topic}")
        return found[0]

    @property
    def member(self) -> str:
        """The signer's member id; only for actions whose standing requires a member."""
        assert self.who.member is not None  # noqa: S101 - see _HAS_STANDING
        return self.who.member


def _new_member(action: Action, signer: str) -> str | None:
    """The member that this action makes of the signer; a repetition of the event is looked up under that name."""
    if isinstance(action, Join) or (isinstance(action, CreateMesh | AddMember) and action.key == signer):
        return action.member
    return None


def _is_keeper(office: Office, action: Any) -> bool:
    if office.who.is_admin:
        return True
    created_by = office.topic(action.topic)[1] if office.who.member else None
    return created_by is not None and created_by == office.who.member


_HAS_STANDING: Mapping[Standing, Callable[[Office, Any], bool]] = total(
    {
        Standing.ANYBODY: lambda office, action: True,
        Standing.FOUNDER: lambda office, action: (
            office.who.is_operator or office.who.is_local or office.is_operator(action.operator)
        ),
        Standing.OPERATOR: lambda office, action: office.who.is_operator,
        Standing.ADMIN: lambda office, action: office.who.is_admin,
        Standing.MEMBER: lambda office, action: office.who.member is not None,
        Standing.ONESELF_OR_ADMIN: lambda office, action: office.who.is_admin or action.member == office.who.member,
        Standing.KEEPER: _is_keeper,
    },
    Standing,
)


def _create_mesh(office: Office, action: CreateMesh) -> None:
    if not office.who.is_operator and action.key != office.who.pubkey:
        raise Refused(Refusal.NOT_PERMITTED, "only an operator founds a mesh for another key")
    if office.rows("mesh"):
        raise Refused(Refusal.NAME_TAKEN, f"there is a mesh {office.mesh}")
    office.run("create_mesh", name=action.name)
    _admit(office, action.member, action.member_name, action.key, Role.ADMIN)


def _invite(office: Office, action: Invite) -> None:
    if action.expires_at <= office.now:
        raise Refused(Refusal.MALFORMED, f"expires_at {action.expires_at} is in the past")
    if office.rows("invite", key=action.key):
        raise Refused(Refusal.NAME_TAKEN, "this invitation exists already")
    office.run(
        "add_invite",
        key=action.key,
        role=action.role.value,
        expires_at=action.expires_at,
        created_by=office.who.member or office.who.pubkey,
    )


def _withdraw_invite(office: Office, action: WithdrawInvite) -> None:
    if not office.rows("invite", key=action.key):
        raise Refused(Refusal.INVITE_INVALID, "there is no such invitation")
    office.run("withdraw_invite", key=action.key)


def _join(office: Office, action: Join) -> None:
    found = office.rows("invite", key=action.invite)
    if not found:
        raise Refused(Refusal.INVITE_INVALID, "there is no such invitation")
    role, expires_at, used_at, withdrawn_at = found[0]
    if used_at is not None:
        raise Refused(Refusal.INVITE_INVALID, "the invitation was used already")
    if withdrawn_at is not None:
        raise Refused(Refusal.INVITE_INVALID, "the invitation was withdrawn")
    if expires_at <= office.now:
        raise Refused(Refusal.INVITE_INVALID, "the invitation has expired")
    _admit(office, action.member, action.name, office.who.pubkey, Role(role))
    office.run("use_invite", key=action.invite, member=action.member)


def _add_member(office: Office, action: AddMember) -> None:
    _admit(office, action.member, action.name, action.key, action.role)


def _admit(office: Office, member: str, name: str, key: str, role: Role) -> None:
    taken = office.rows("taken", member=member, name=name, pubkey=key)
    if taken:
        refusal = Refusal.KEY_TAKEN if taken[0][0] == "key" else Refusal.NAME_TAKEN
        raise Refused(refusal, f"the {taken[0][0]} is or was another member's")
    ((members,),) = office.rows("members")
    office.check_room("mesh.members_max", office.limits.members_max, members)
    office.run("add_member", member=member, name=name, role=role.value)
    office.run("add_key", member=member, pubkey=key)


def _rename_member(office: Office, action: RenameMember) -> None:
    office.active(action.member)
    taken = {what for (what,) in office.rows("taken", member="", name=action.name, pubkey="")}
    if taken and office.active(action.member)[2] != action.name:
        raise Refused(Refusal.NAME_TAKEN, "the name belongs to another member")
    office.run("rename_member", member=action.member, name=action.name)


def _revoke_member(office: Office, action: RevokeMember) -> None:
    _keep_an_admin(office, action.member)
    office.run("revoke_member", member=action.member)
    office.run("withdraw_invites_of", member=action.member)
    office.run("retire_key", member=action.member)
    office.run("leave_topics", member=action.member)
    office.drop_queue(action.member)


def _keep_an_admin(office: Office, member: str) -> None:
    """Refuse to leave a mesh without an admin, unless an operator asks for it."""
    if office.active(member)[1] != Role.ADMIN or office.who.is_operator:
        return
    others = office.rows("others", member=member)
    if others and not any(role == Role.ADMIN for (role,) in others):
        raise Refused(Refusal.LAST_ADMIN, f"member {member} is the last admin")


def _set_role(office: Office, action: SetRole) -> None:
    if action.role is not Role.ADMIN:
        _keep_an_admin(office, action.member)
        office.run("withdraw_invites_of", member=action.member)
    office.active(action.member)
    office.run("set_role", member=action.member, role=action.role.value)


def _rotate_member_key(office: Office, action: RotateMemberKey) -> None:
    office.active(action.member)
    if office.rows("taken", member="", name="", pubkey=action.key):
        raise Refused(Refusal.KEY_TAKEN, "the key is or was a member's")
    ((replaced, of_member),) = office.rows("replaced_keys", member=action.member)
    office.check_room("mesh.member_replaced_keys_max", office.limits.member_replaced_keys_max, of_member)
    office.check_room("mesh.replaced_keys_max", office.limits.replaced_keys_max, replaced)
    office.run("retire_key", member=action.member)
    office.run("add_key", member=action.member, pubkey=action.key)


def _create_topic(office: Office, action: CreateTopic) -> None:
    if office.rows("topic", topic=action.topic):
        raise Refused(Refusal.NAME_TAKEN, f"there is a topic {action.topic}")
    ((topics, of_member),) = office.rows("topics", member=office.member)
    office.check_room("mesh.member_topics_max", office.limits.member_topics_max, of_member)
    office.check_room("mesh.topics_max", office.limits.topics_max, topics)
    office.run("create_topic", topic=action.topic, created_by=office.member)


def _subscribe(office: Office, action: Subscribe) -> None:
    office.topic(action.topic)
    ((subscriptions, is_subscribed),) = office.rows("subscriptions", topic=action.topic, member=office.member)
    if not is_subscribed:
        office.check_room("mesh.subscriptions_max", office.limits.subscriptions_max, subscriptions)
    office.run("subscribe", topic=action.topic, member=office.member)


def _unsubscribe(office: Office, action: Unsubscribe) -> None:
    office.topic(action.topic)
    office.run("unsubscribe", topic=action.topic, member=office.member)


def _grant_topic_key(office: Office, action: GrantTopicKey) -> None:
    current, _, key_id = office.topic(action.topic)
    if action.key_epoch not in (current, current + 1):
        raise Refused(Refusal.EPOCH_SUPERSEDED, f"key epoch {action.key_epoch} is neither {current} nor the next")
    if action.key_epoch == current and action.key_id != key_id:
        raise Refused(Refusal.EPOCH_SUPERSEDED, f"the key of epoch {current} is {key_id}")
    for grant in action.grants:
        if office.active(grant.member)[3] != grant.key:
            raise Refused(Refusal.STALE_KEY, f"the key of member {grant.member} has changed")
    for grant in action.grants:
        office.run(
            "grant",
            topic=action.topic,
            key_epoch=action.key_epoch,
            key_id=action.key_id,
            member=grant.member,
            key=grant.key,
            sealed=grant.sealed,
            granted_by=office.who.pubkey,
        )


def _advance_topic_key(office: Office, action: AdvanceTopicKey) -> None:
    current = office.topic(action.topic)[0]
    if action.key_epoch != current:
        raise Refused(Refusal.EPOCH_SUPERSEDED, f"the key epoch is {current}, not {action.key_epoch}")
    missing = office.rows("without_grant", topic=action.topic, key_epoch=current + 1, key_id=action.key_id)
    if missing:
        raise Refused(Refusal.GRANT_MISSING, f"member {missing[0][0]} has no grant of key epoch {current + 1}")
    office.run("advance", topic=action.topic, key_epoch=current, key_id=action.key_id)
    office.run("supersede", topic=action.topic, key_epoch=current)


def _block(office: Office, action: Block) -> None:
    office.active(action.member)
    office.run("block", member=office.member, blocked=action.member)


def _unblock(office: Office, action: Unblock) -> None:
    office.run("unblock", member=office.member, blocked=action.member)


def _admit_author(office: Office, action: AdmitAuthor) -> None:
    if action.member != office.member:
        raise Refused(Refusal.NOT_PERMITTED, "a member vouches for authors in its own name")
    ((authors, is_admitted),) = office.rows("authors", author=action.author, member=office.member)
    if not is_admitted:
        office.check_room("mesh.member_authors_max", office.limits.member_authors_max, authors)
    office.run("admit_author", author=action.author, member=action.member)


def _dismiss_author(office: Office, action: DismissAuthor) -> None:
    found = office.rows("author", author=action.author)
    if not found:
        raise Refused(Refusal.SUBJECT_UNKNOWN, "there is no such author")
    if not office.who.is_admin and found[0][0] != office.who.member:
        raise Refused(Refusal.NOT_PERMITTED, "an author is dismissed by who admitted it, or by an admin")
    office.run("dismiss_author", author=action.author)


ACTIONS: Mapping[type, tuple[Standing, Callable[[Office, Any], None]]] = total(
    {
        CreateMesh: (Standing.FOUNDER, _create_mesh),
        Invite: (Standing.ADMIN, _invite),
        WithdrawInvite: (Standing.ADMIN, _withdraw_invite),
        Join: (Standing.ANYBODY, _join),
        AddMember: (Standing.ADMIN, _add_member),
        RenameMember: (Standing.ONESELF_OR_ADMIN, _rename_member),
        RevokeMember: (Standing.ONESELF_OR_ADMIN, _revoke_member),
        SetRole: (Standing.ADMIN, _set_role),
        RotateMemberKey: (Standing.ONESELF_OR_ADMIN, _rotate_member_key),
        CreateTopic: (Standing.MEMBER, _create_topic),
        Subscribe: (Standing.MEMBER, _subscribe),
        Unsubscribe: (Standing.MEMBER, _unsubscribe),
        GrantTopicKey: (Standing.KEEPER, _grant_topic_key),
        AdvanceTopicKey: (Standing.KEEPER, _advance_topic_key),
        Block: (Standing.MEMBER, _block),
        Unblock: (Standing.MEMBER, _unblock),
        AdmitAuthor: (Standing.MEMBER, _admit_author),
        DismissAuthor: (Standing.MEMBER, _dismiss_author),
        RegisterConsumer: (Standing.OPERATOR, Office.register),
        RemoveConsumer: (Standing.OPERATOR, Office.remove),
    },
    get_args(Action),
)
