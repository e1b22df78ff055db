"""How callers of the relay's routes must authenticate, in code and for OpenAPI."""

from enum import StrEnum

from holdfast.protocol.tables import total
from holdfast.wire.openapi import Security


class Auth(StrEnum):
    """The authentication that a route requires."""

    NONE = "none"
    SIGNED_EVENTS = "signed_events"  # each event in the body has its own signature
    MEMBER = "member"  # NIP-98 by a member of the mesh or an operator
    TOKEN = "token"  # noqa: S105 - a kind of secret, not one
    OPERATOR = "operator"  # NIP-98 by an operator
    CONSUMER = "consumer"  # NIP-98 by an operator, or the token of that consumer


SECURITY = Security(
    schemes={
        "nostr": {"type": "http", "scheme": "Nostr", "description": "NIP-98: a signed event of kind 27235, in base64."},
        "token": {"type": "http", "scheme": "bearer", "description": "An export token: `holdfast relay token`."},
    },
    accepted=total(
        {
            Auth.NONE: (),
            Auth.SIGNED_EVENTS: (),
            Auth.MEMBER: ("nostr",),
            Auth.OPERATOR: ("nostr",),
            Auth.TOKEN: ("token",),
            Auth.CONSUMER: ("nostr", "token"),
        },
        Auth,
    ),
)
