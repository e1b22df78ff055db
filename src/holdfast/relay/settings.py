"""Every setting of a relay, with its unit and default. From a TOML file and the environment; unknown ones are refused."""

import msgspec

from holdfast.protocol.schedule import DedupeMode


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one request, connection, sender or recipient may take."""

    queue_messages_max: int = 1_000  # undelivered messages that may wait for one member
    messages_per_s: float = 100.0  # of one sender, sustained
    messages_burst: int = 1_000  # of one sender, at once
    free_repeats: int = 5  # how often the same bytes are not counted against the sender, per window
    free_repeats_window_s: int = 60
    events_per_request_max: int = 100
    request_bytes_max: int = 8_388_608  # of one HTTP body: a hundred of the largest events fit
    frame_bytes_max: int = 131_072  # of one WebSocket message
    connections_max: int = 1_000
    request_timeout_s: float = 30.0  # from the first byte of a request to its last
    idle_timeout_s: float = 75.0  # without any bytes from the other side
    send_timeout_s: float = 30.0  # for the other side to take what it is sent


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long things are kept."""

    dedupe_mode: DedupeMode = DedupeMode.RETENTION_SCOPED
    dedupe_retention_days: int = 365  # at least 7; for how long a repeated id is recognised
    message_retention_days: int = 30  # delivered or closed messages; after it `history_available` is false
    queue_ttl_days: int = 7  # an undelivered message
    history_hold_days: int = 7  # for how long a consumer that does not come may hold back pruning
    history_retention_days: int | None = None  # entries of the history; None keeps them all
    sweep_interval_s: int = 300
    sweep_rows_max: int = 1_000  # rows that one transaction of a sweep takes


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A relay's settings."""

    host: str = "127.0.0.1"
    port: int = 7447
    name: str = "holdfast relay"
    public_url: str | None = None  # as clients reach it, when that is not http://host:port
    operators: tuple[str, ...] = ()  # public keys, hex or npub; the data directory's own operator is always one
    limits: Limits = Limits()
    retention: Retention = Retention()
    log_level: str = "info"
