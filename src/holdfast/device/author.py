"""The author whose documents a home keeps: a person's key, not the home's own, made here or shared by another home.

A shared key travels as a direct message and is sealed once more inside it, so that neither the inbox nor its export shows
the secret. It is used only when a person says so, because the member who shared it can read what is written with it.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import msgspec

from holdfast.device.send import Prepared, Send, prepare
from holdfast.protocol import document, keys, payload, sealing
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements
from holdfast.store.world import Random

_SQL = Statements(__package__, "author.sql")

GRANT_OBJECT = hashlib.sha256(b"holdfast author grant 1").digest()  # the object id of messages that share a key
GRANT_META = "author_grant"
GRANTS_MAX = 100  # messages that are looked through for grants; the newest of each member counts


class Author(msgspec.Struct, frozen=True, dict=True):
    """A person who owns documents, by their key."""

    pubkey: str
    secret: bytes
    granted_by: str | None  # the member whose home shared the key; None if it was made here
    kept_at: int

    @cached_property
    def sealing_key(self) -> bytes:
        return document.sealing_key(self.secret)


class Grant(msgspec.Struct, frozen=True):
    """A key that a member has shared with this one."""

    member: str
    name: str
    pubkey: str  # of the member, to which the grant is sealed
    author: str
    sealed: str


class _Shared(msgspec.Struct, frozen=True):
    author: str
    sealed: str


def load(transaction: Transaction) -> Author | None:
    """The author of this home, if it has one."""
    found = transaction.rows(_SQL["author"])
    return Author(*found[0]) if found else None


def need(transaction: Transaction) -> Author:
    """The author of this home; refuses if it has none."""
    found = load(transaction)
    if found is None:
        raise Refused(Refusal.AUTHOR_MISSING, "this home keeps no author's documents")
    return found


def make(transaction: Transaction, now: int, random: Random) -> Author:
    """Make a new author for this home; an author that it has already stays and is returned."""
    return keep(transaction, now, random(keys.SECRET_BYTES))


def take(transaction: Transaction, now: int, secrets: Sequence[bytes], member: str) -> Author:
    """Use the author's key that a member shared with one of these secrets; refuses if there is another author."""
    for grant in grants(transaction, member):
        shared = _open(grant, secrets)
        kept = keep(transaction, now, shared, member)
        if kept.pubkey != grant.author:
            detail = f"this home keeps the documents of {kept.pubkey}, and {grant.author} was shared"
            raise Refused(Refusal.AUTHOR_PRESENT, detail)
        return kept
    raise Refused(Refusal.NOT_FOUND, "that member has shared no author key with this home")


def grants(transaction: Transaction, member: str | None = None) -> list[Grant]:
    """The keys that members, or one of them, have shared with this one, the newest of each."""
    found: dict[str, Grant] = {}
    asked: dict[str, Value] = {"object_id": GRANT_OBJECT, "member": member, "limit": GRANTS_MAX}
    rows = transaction.rows(_SQL["grants"], asked)
    for member, name, pubkey, meta in rows:
        try:
            shared = msgspec.convert(msgspec.json.decode(meta).get(GRANT_META), _Shared)
        except (msgspec.ValidationError, AttributeError):
            continue  # a message that uses the object id for something else
        found.setdefault(member, Grant(member, name, pubkey, shared.author, shared.sealed))
    return list(found.values())


def grant(
    author: Author, secret: bytes, to: str, pubkey: str, random: Random, client_message_id: str | None = None
) -> Prepared:
    """The message that shares an author's key with a member, sealed to its key."""
    asked = prepare(
        Send(
            to=to,
            message=f"Here is the key of an author's documents ({keys.npub(author.pubkey)}). Whoever uses it can edit them.",
            client_message_id=client_message_id,
            object_id=GRANT_OBJECT.hex(),
            meta={GRANT_META: {"author": author.pubkey}},
        )
    )
    # Not before the fingerprint is taken: a repetition seals anew, and is the same request all the same.
    sealed = sealing.seal(sealing.conversation_key(secret, pubkey), author.secret, random(sealing.NONCE_BYTES))
    meta = payload.canonical_meta({GRANT_META: {"author": author.pubkey, "sealed": sealed}})
    return msgspec.structs.replace(asked, content=msgspec.structs.replace(asked.content, meta=meta))


def _open(grant: Grant, secrets: Sequence[bytes]) -> bytes:
    shared = _unsealed(grant, secrets)
    if len(shared) != keys.SECRET_BYTES or keys.public_key(shared) != grant.author:
        raise Refused(Refusal.UNREADABLE, "what was shared is not the key that it is said to be")
    return shared


def _unsealed(grant: Grant, secrets: Sequence[bytes]) -> bytes:
    for secret in secrets:
        with suppress(Refused):
            return sealing.open_sealed(sealing.conversation_key(secret, grant.pubkey), grant.sealed)
    raise Refused(
        Refusal.UNREADABLE, "what was shared was sealed to a key that is not here any more; have it shared anew"
    )


def keep(transaction: Transaction, now: int, secret: bytes, granted_by: str | None = None) -> Author:
    """Keep an author's key unless the home has an author; returns the author that it has then."""
    pubkey = keys.public_key(secret)
    values = {"pubkey": pubkey, "secret": secret, "granted_by": granted_by, "now": now}
    transaction.run(_SQL["keep_author"], values)
    return need(transaction)
