"""What a relay answers to whom: every route and verb, every caller, as data.

A route belongs to a class; what a class says to those whom it does not serve is one row of a table. What it says to those
whom it serves is the route's own. A caller that a row does not name is served.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.protocol import action as actions
from holdfast.protocol import administration
from holdfast.protocol.action import Action, Role
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.refusal import Refusal
from tests.abuse.scene import CONSUMER, Caller, Scene, forged
from tests.people import public_key, secret_of
from tests.relay.feed_client import Author, tail

NOBODY, FORGER, STRANGER, OTHER, REVOKED, MEMBER, ADMIN, OPERATOR, TOKEN, OTHER_TOKEN = Caller


class Kind(StrEnum):
    """Whom a route serves."""

    OPEN = "open"
    MEMBERS = "members"  # of the mesh in the path, and operators
    OWN = "own"  # members of it alone: what they ask for is their own
    OPERATORS = "operators"
    EXPORT = "export"
    CONSUMERS = "consumers"  # operators, and the token of the consumer in the path


NOT_SERVED: Mapping[Kind, Mapping[Caller, str]] = {
    Kind.OPEN: {},
    Kind.MEMBERS: {
        NOBODY: "401 auth_required",
        FORGER: "401 auth_failed",
        STRANGER: "403 not_a_member",
        OTHER: "403 not_a_member",
        REVOKED: "403 not_a_member",
        TOKEN: "401 auth_required",
        OTHER_TOKEN: "401 auth_required",
    },
    Kind.OWN: {
        NOBODY: "401 auth_required",
        FORGER: "401 auth_failed",
        STRANGER: "403 not_a_member",
        OTHER: "403 not_a_member",
        REVOKED: "403 not_a_member",
        OPERATOR: "403 not_a_member",
        TOKEN: "401 auth_required",
        OTHER_TOKEN: "401 auth_required",
    },
    Kind.OPERATORS: {
        NOBODY: "401 auth_required",
        FORGER: "401 auth_failed",
        STRANGER: "403 not_permitted",
        OTHER: "403 not_permitted",
        REVOKED: "403 not_permitted",
        MEMBER: "403 not_permitted",
        ADMIN: "403 not_permitted",
        TOKEN: "401 auth_required",
        OTHER_TOKEN: "401 auth_required",
    },
    Kind.EXPORT: dict.fromkeys(
        (NOBODY, FORGER, STRANGER, OTHER, REVOKED, MEMBER, ADMIN, OPERATOR), "401 token_invalid"
    ),
    Kind.CONSUMERS: {
        NOBODY: "401 auth_required",
        FORGER: "401 auth_failed",
        STRANGER: "403 not_permitted",
        OTHER: "403 not_permitted",
        REVOKED: "403 not_permitted",
        MEMBER: "403 not_permitted",
        ADMIN: "403 not_permitted",
        OTHER_TOKEN: "403 not_permitted",
    },
}


@dataclass(frozen=True)
class Row:
    """One request, and what those whom it serves get."""

    kind: Kind
    path: str
    yes: str = "200"
    body: bytes = b""


MODERATION = json.dumps({"reason": "spam"}).encode()
CHECKPOINT = json.dumps({"log_id": "00" * 16, "seq": 0}).encode()

ROUTES: Mapping[tuple[str, str], Row] = {
    ("GET", "/v1/meshes/{mesh}"): Row(Kind.MEMBERS, "/v1/meshes/01MESH"),
    ("GET", "/v1/meshes/{mesh}/grants"): Row(Kind.OWN, "/v1/meshes/01MESH/grants?topic=news"),
    ("GET", "/v1/meshes/{mesh}/fates"): Row(Kind.OWN, "/v1/meshes/01MESH/fates"),
    ("GET", "/v1/meshes/{mesh}/sends/{client_message_id}"): Row(Kind.OWN, "/v1/meshes/01MESH/sends/x"),
    ("POST", "/v1/messages/{message_id}/moderation"): Row(
        Kind.OPERATORS, "/v1/messages/x/moderation", "404 not_found", MODERATION
    ),
    ("GET", "/v1/export/{table}"): Row(Kind.EXPORT, "/v1/export/history"),
    ("GET", "/v1/consumers/{name}"): Row(Kind.CONSUMERS, f"/v1/consumers/{CONSUMER}", "404 consumer_unknown"),
    ("PUT", "/v1/consumers/{name}"): Row(Kind.CONSUMERS, f"/v1/consumers/{CONSUMER}", "409 other_log", CHECKPOINT),
    ("GET", "/"): Row(Kind.OPEN, "/"),
    ("GET", "/livez"): Row(Kind.OPEN, "/livez"),
    ("GET", "/readyz"): Row(Kind.OPEN, "/readyz"),
    ("GET", "/metrics"): Row(Kind.OPEN, "/metrics"),
    ("GET", "/openapi.json"): Row(Kind.OPEN, "/openapi.json"),
}
"""Every route but that of events, which is asked with everything that can be published."""


# What may be published, and by whom. Who comes with a token has nothing to sign with, and is nobody.

SIGNERS = (FORGER, STRANGER, OTHER, REVOKED, MEMBER, ADMIN, OPERATOR)
MALFORMED = "400 malformed"
FORGERY = {FORGER: "400 bad_signature"}
OUTSIDE = FORGERY | dict.fromkeys((STRANGER, OTHER, REVOKED, OPERATOR), "403 not_a_member")
NOT_ADMIN = FORGERY | dict.fromkeys((STRANGER, OTHER, REVOKED, MEMBER), "403 not_permitted")
NOT_MEMBER = FORGERY | dict.fromkeys((STRANGER, OTHER, REVOKED, OPERATOR), "403 not_permitted")
NOT_OPERATOR = NOT_ADMIN | {ADMIN: "403 not_permitted"}

EVENTS: Mapping[str, tuple[str, Mapping[Caller, str]]] = {
    "message": ("201", OUTSIDE),
    "topic message": ("201", OUTSIDE),
    "receipt": ("404 receipt_unknown", OUTSIDE),
    "snapshot": ("403 author_not_admitted", FORGERY),
    "note of another protocol": ("400 kind_unsupported", {FORGER: "400 kind_unsupported"}),
}
"""What is answered to a signer, and to those of another answer what."""

NEW_KEY = secret_of("a key of the matrix")


def _rotation(scene: Scene) -> Action:
    return administration.rotate_member_key(NEW_KEY, scene.admin.mesh, "nobody-here", bytes(32))


def _admission(scene: Scene) -> Action:
    return administration.admit_author(NEW_KEY, scene.admin.mesh, scene.member.member, bytes(32))


def _joining(scene: Scene) -> Action:
    return administration.join(NEW_KEY, scene.admin.mesh, "nobody-here", "nobody", "00" * 32, bytes(32))


def _granting(scene: Scene) -> Action:
    sealed = json.loads(scene.admin.grant("news", 7, (scene.member,)).content)["grants"][0]
    grant = actions.Grant(member=sealed["member"], key=sealed["key"], sealed=sealed["sealed"])
    return actions.GrantTopicKey(topic="news", key_epoch=7, key_id="00" * 16, grants=(grant,))


@dataclass(frozen=True)
class Asked:
    """An action that changes nothing when it is carried out, or is found to be in vain only after its right was."""

    action: Callable[[Scene], Action]
    yes: str
    no: Mapping[Caller, str]
    mesh: str | None = None


UNKNOWN = "404 subject_unknown"
ACTIONS: Mapping[type, Asked] = {
    actions.CreateMesh: Asked(
        lambda scene: actions.CreateMesh(name="x", member="x", member_name="x", key=public_key(NEW_KEY)),
        "409 name_taken",
        NOT_OPERATOR,
    ),
    actions.Invite: Asked(
        lambda scene: actions.Invite(key=public_key(NEW_KEY), expires_at=1, role=Role.MEMBER), MALFORMED, NOT_ADMIN
    ),
    actions.WithdrawInvite: Asked(
        lambda scene: actions.WithdrawInvite(key=public_key(NEW_KEY)), "403 invite_invalid", NOT_ADMIN
    ),
    actions.Join: Asked(_joining, "403 invite_invalid", FORGERY),
    actions.AddMember: Asked(
        lambda scene: actions.AddMember(member="x", name="x", key=scene.admin.key, role=Role.ADMIN),
        "409 key_taken",
        NOT_ADMIN,
    ),
    actions.RenameMember: Asked(lambda scene: actions.RenameMember(member="nobody", name="x"), UNKNOWN, NOT_ADMIN),
    actions.RevokeMember: Asked(lambda scene: actions.RevokeMember(member="nobody"), UNKNOWN, NOT_ADMIN),
    actions.SetRole: Asked(lambda scene: actions.SetRole(member="nobody", role=Role.ADMIN), UNKNOWN, NOT_ADMIN),
    actions.RotateMemberKey: Asked(_rotation, UNKNOWN, NOT_ADMIN),
    actions.CreateTopic: Asked(lambda scene: actions.CreateTopic(topic="news"), "409 name_taken", NOT_MEMBER),
    actions.Subscribe: Asked(lambda scene: actions.Subscribe(topic="nothing"), UNKNOWN, NOT_MEMBER),
    actions.Unsubscribe: Asked(lambda scene: actions.Unsubscribe(topic="nothing"), UNKNOWN, NOT_MEMBER),
    actions.GrantTopicKey: Asked(_granting, "409 epoch_superseded", NOT_ADMIN),
    actions.AdvanceTopicKey: Asked(
        lambda scene: actions.AdvanceTopicKey(topic="news", key_epoch=7, key_id="00" * 16),
        "409 epoch_superseded",
        NOT_ADMIN,
    ),
    actions.Block: Asked(lambda scene: actions.Block(member="nobody"), UNKNOWN, NOT_MEMBER),
    actions.Unblock: Asked(lambda scene: actions.Unblock(member="nobody"), "201", NOT_MEMBER),
    actions.AdmitAuthor: Asked(_admission, "201", NOT_MEMBER | {ADMIN: "403 not_permitted"}),
    actions.DismissAuthor: Asked(
        lambda scene: actions.DismissAuthor(author=public_key(secret_of("nobody"))), UNKNOWN, NOT_MEMBER
    ),
    actions.RegisterConsumer: Asked(
        lambda scene: actions.RegisterConsumer(consumer="x", log_id="00" * 16, seq=0),
        "409 other_log",
        NOT_OPERATOR,
        mesh="relay",
    ),
    actions.RemoveConsumer: Asked(
        lambda scene: actions.RemoveConsumer(consumer="x"), UNKNOWN, NOT_OPERATOR, mesh="relay"
    ),
}
"""What each action is answered, over a road on which the relay takes nobody for a neighbour."""


def published(scene: Scene, caller: Caller, what: str) -> Event:
    """What somebody publishes, signed with the key that they have."""
    signer = copy.copy(scene.person(caller))
    signer.mesh = scene.admin.mesh
    said: Mapping[str, Callable[[], Event]] = {
        "message": lambda: signer.message(scene.admin),
        "topic message": lambda: signer.post("news"),
        "receipt": lambda: signer.receipt(scene.admin, "00" * 32),
        "snapshot": lambda: Author(signer.name).snapshot(),
        "note of another protocol": lambda: sign_event(signer.secret, signer.now_s, 1, [], "hello", bytes(32)),
    }
    return _as(caller, said[what]())


def administered(scene: Scene, caller: Caller, asked: Asked) -> Event:
    return _as(caller, scene.person(caller).administer(asked.action(scene), mesh=asked.mesh or scene.admin.mesh))


def _as(caller: Caller, event: Event) -> Event:
    return forged(event) if caller is FORGER else event


# Verbs of a WebSocket. What comes first is what counts; of a refusal, its code.

READERS = (NOBODY, FORGER, STRANGER, OTHER, REVOKED, MEMBER, ADMIN, OPERATOR)


@dataclass(frozen=True)
class Verb:
    """A frame, what those get whom it serves, and what the others do."""

    frame: Callable[[Scene], Sequence[Any]]
    yes: str
    no: Mapping[Caller, str]


NOT_AUTHOR = dict.fromkeys((STRANGER, OTHER, REVOKED, MEMBER, ADMIN, OPERATOR), "author_only")
NO_KEY = dict.fromkeys((NOBODY, FORGER), "auth_required")


def _said(words: str, codes: Mapping[Caller, str]) -> dict[Caller, str]:
    return {caller: f"{words} {code}" for caller, code in codes.items()}


VERBS: Mapping[str, Verb] = {
    "AUTH": Verb(lambda scene: ("AUTH", {}), "OK auth_failed", {}),
    "EVENT": Verb(lambda scene: ("EVENT", {}), "OK malformed", {}),
    "QUEUE": Verb(
        lambda scene: ("QUEUE", "s", {"mesh": scene.member.mesh}),
        "QUEUE STATUS",
        _said("QUEUE ERR", NO_KEY | dict.fromkeys((STRANGER, OTHER, REVOKED, OPERATOR), "not_a_member")),
    ),
    "CHANGES": Verb(
        lambda scene: ("CHANGES", "s", tail(scene.author)),
        "CHANGES EVENT",
        _said("CHANGES ERR", NO_KEY | NOT_AUTHOR),
    ),
    "REQ": Verb(
        lambda scene: ("REQ", "s", {"authors": [scene.author.key]}), "EVENT", _said("CLOSED", NO_KEY | NOT_AUTHOR)
    ),
    "CLOSE": Verb(lambda scene: ("CLOSE", "s"), "CLOSED", {}),
    "FEATURES": Verb(lambda scene: ("FEATURES", {}), "FEATURES", {}),
    "COUNT": Verb(lambda scene: ("COUNT", "s", {}), "NOTICE feature_unavailable", {}),
}


def told(frame: Sequence[Any]) -> str:
    """A frame in short: its words, and the code of a refusal."""
    text = str(frame[-1])
    code = text.split(": ")[1] if ": " in text and text.split(": ")[1] in set(Refusal) else ""
    second = str(frame[2]) if frame[0] in ("QUEUE", "CHANGES") else ""
    return " ".join(word for word in (frame[0], second, code) if word)
