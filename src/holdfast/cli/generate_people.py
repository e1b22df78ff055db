"""The people of generated traffic: members with their keys, counters and habits, the messages that wait for them, topics."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.protocol.envelope import Head
from holdfast.protocol.event import Event

if TYPE_CHECKING:
    from holdfast.cli.generate_home import HomeBook


@dataclass(slots=True, eq=False)
class Send:
    """Something a device sends: a message, a receipt, administration."""

    sender: "Member"
    sequence: int
    client_message_id: str
    destination_kind: str
    destination_ref: str
    event_id: bytes
    event: bytes
    enqueued_at: int
    epoch: bytes
    kind: int  # of the event
    log_kind: str  # what the device's own log calls the destination's kind
    mentions: tuple[str, ...] = ()
    expires_at: int | None = None
    detail: bytes = b""
    lines: tuple[tuple["Kept", str], ...] = ()  # of a receipt: what was received, and its status
    attempts: int = 0
    is_tried: bool = False  # an attempt has begun, so the signed event is on disk
    last_error: str | None = None
    row_id: str = ""


@dataclass(slots=True, eq=False)
class Accepted:
    """A send with its place at the relay."""

    send: Send
    seq: int
    at: int
    message_id: str


@dataclass(slots=True, eq=False)
class Waiting:
    """An open delivery: one message for one member."""

    member: "Member"
    accepted: Accepted
    expires_at: int

    @property
    def is_receipt(self) -> bool:
        return bool(self.accepted.send.lines)


@dataclass(slots=True, eq=False)
class Kept:
    """A message that its recipient has, and has not receipted yet."""

    waiting: Waiting
    closed_at: int
    was_stored: bool


@dataclass(slots=True, eq=False)
class Member:
    """One member: a device with its counters, and how often it is there."""

    mesh: "Mesh"
    member: str
    name: str
    role: str
    secret: bytes
    key: str
    epoch: bytes
    presence: float  # how likely it is online in a burst of its mesh
    joined_at: int = 0
    revoked_at: int | None = None
    sequence: int = 0
    counter: int = 0
    accepted_sequence: int = -1
    queue: deque[Waiting] = field(default_factory=deque)
    queue_count: int = 0  # messages in the queue; receipts are not counted
    expires_next_at: int = 0  # nothing in the queue expires before
    unsent: list[Send] = field(default_factory=list)
    unreceipted: dict["Member", list[Kept]] = field(default_factory=dict)
    keys: list[tuple[str, int]] = field(default_factory=list)  # (key, since), the current one last
    blocked_by: set[str] = field(default_factory=set)
    events: tuple[Event, ...] = ()  # sealed and signed ones, whose content and signature are used again and again
    home: "HomeBook | None" = None

    def next_head(self, client_message_id: str) -> Head:
        """The head of its next send; the sequence is taken."""
        head = Head(mesh=self.mesh.mesh, client_message_id=client_message_id, epoch=self.epoch, sequence=self.sequence)
        self.sequence += 1
        return head


@dataclass(slots=True, eq=False)
class Topic:
    """A topic with its first and only key."""

    topic: str
    key: bytes
    key_id: str
    creator: Member
    created_at: int
    subscribers: list[Member] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Mesh:
    """One tenancy."""

    mesh: str
    name: str
    created_at: int
    members: list[Member] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)
    active: list[Member] = field(default_factory=list)

    def called(self, member: str) -> Member:
        return next(found for found in self.members if found.member == member)
