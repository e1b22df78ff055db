"""The routes of the daemon: the handler of each request, and its description for /openapi.json."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.device import ipc_documents as documents
from holdfast.device.ipc_administration import Arguments
from holdfast.device.ipc_events import CONTENT_TYPE as EVENT_STREAM
from holdfast.device.send import Send
from holdfast.device.trace import Trace
from holdfast.export.exporter import CONTENT_TYPE as ARROW
from holdfast.wire.route import Handler, Route

if TYPE_CHECKING:
    from holdfast.device.ipc_handlers import Handlers

_PAGE = {"after": "Only what comes after this one.", "limit": "At most so many, up to 500."}
_INBOX = {
    **_PAGE,
    "since": "Only what arrived at this time (microseconds, or ISO 8601) or later.",
    "topic": "Only what was posted to this topic.",
    "from": "Only what this member sent: its name, id, npub or key.",
    "unapplied": "true: only what no application has acted on, and is not parked.",
    "parked": "true: only what was parked because its handler kept failing.",
}
_OUTBOX = {
    **_PAGE,
    "status": "Only these statuses, with commas between them.",
    "to": "Only what goes to this member or @topic.",
}
_SCHEDULED = {**_PAGE, "to": _OUTBOX["to"]}
_EVENTS = {
    "after": "Go on after this event's id, or this position; the header Last-Event-ID comes first.",
    "kinds": "Only entries of these kinds, with commas between them.",
}
_EXPORT = {
    "after": "Only what lies behind this position.",
    "until": "And not behind this one.",
    "columns": "Only these columns, with commas between them; payloads only when named, and on the socket only.",
}


def routes(handlers: "Handlers") -> list[Route]:
    """All routes of a daemon."""
    return [
        _post("/v1/send", handlers.post_send, "Send a message; the id may come as Idempotency-Key, too.", Send, _SENT),
        _post("/v1/topic/post", handlers.post_topic_post, "Send a message to a topic.", documents.TopicPost, _SENT),
        _post("/v1/topic/subscribe", handlers.post_subscribe, "Subscribe.", documents.NamedTopic, _SUBSCRIPTION),
        _post("/v1/topic/unsubscribe", handlers.post_unsubscribe, "Unsubscribe.", documents.NamedTopic, _SUBSCRIPTION),
        _get("/v1/topic/list", handlers.get_topics, "The topics of the mesh.", documents.Topics),
        _get("/v1/inbox", handlers.get_inbox, "What arrived, in the order of arrival.", documents.InboxPage, _INBOX),
        _post(
            "/v1/inbox/ack",
            handlers.post_acknowledge,
            "The application has acted on these messages.",
            documents.Acknowledge,
            {200: (documents.Acknowledged,)},
        ),
        _post(
            "/v1/inbox/fail",
            handlers.post_fail,
            "A handler could not act on a message; the fifth time parks it.",
            documents.Failed,
            {200: (documents.Message,)},
        ),
        _get("/v1/inbox/{id}", handlers.get_message, "One message.", documents.Message),
        _get("/v1/mentions", handlers.get_mentions, "Messages that mention this member.", documents.InboxPage, _PAGE),
        _get("/v1/reports", handlers.get_reports, "What is wrong about senders.", documents.Reports),
        _get("/v1/peers", handlers.get_peers, "The members of the mesh.", documents.Peers),
        Route(
            method="GET",
            path="/v1/events",
            handler=handlers.get_events,
            summary="Entries of the device's history as they are written; Last-Event-ID goes on without a gap.",
            auth="local",
            query=_EVENTS,
            is_endless=True,
            answers={200: EVENT_STREAM},
        ),
        _get("/v1/outbox", handlers.get_outbox, "What was sent, by sequence.", documents.OutboxPage, _OUTBOX),
        _post(
            "/v1/outbox/requeue",
            handlers.post_requeue,
            "Send the content of a row again under a new id; the old id is retired.",
            documents.Requeue,
            {200: (documents.Requeued,)},
        ),
        _post(
            "/v1/outbox/cancel",
            handlers.post_cancel,
            "Take back a send that waits for its time; its id is used up.",
            documents.Cancel,
            {200: (documents.ScheduledSend,)},
        ),
        _get("/v1/outbox/{id}", handlers.get_outbox_row, "A row, and those it replaced.", documents.Inspection),
        _get(
            "/v1/scheduled",
            handlers.get_scheduled,
            "Sends that wait for their time.",
            documents.ScheduledPage,
            _SCHEDULED,
        ),
        _get("/v1/trace/{id}", handlers.get_trace, "What became of a message, with times.", Trace),
        _post(
            "/v1/administration/{verb}",
            handlers.post_administration,
            "Administer the mesh; what a verb takes is in docs/wire.md.",
            Arguments,
            {200: (documents.Done,)},
        ),
        _get("/v1/export/{table}", handlers.get_export, "A page of a table as an Arrow stream.", ARROW, _EXPORT),
        _get("/v1/health", handlers.get_health, "How the daemon is.", documents.Health),
        _get("/v1/version", handlers.get_version, "Which daemon this is.", documents.Version),
        _get("/v1/compat", handlers.get_compat, "With which relays and programs it works.", documents.Compatibility),
        Route(
            method="POST",
            path="/v1/reload",
            handler=handlers.post_reload,
            summary="Read the settings anew, without losing the connection; on the socket only.",
            auth="local",
            answers={200: (documents.Reloaded,)},
        ),
        Route(
            method="POST",
            path="/v1/token/rotate",
            handler=handlers.post_rotate_token,
            summary="Make another token for the loopback port; on the socket only.",
            auth="local",
            answers={200: (documents.TokenRotated,)},
        ),
        _get("/v1/metrics", handlers.get_metrics, "Counts for Prometheus.", "text/plain"),
        _get("/openapi.json", handlers.get_openapi, "This description.", "application/json"),
    ]


_SENT: Mapping[int, tuple[Any, ...]] = {202: (documents.SendAnswer,), 200: (documents.SendAnswer,)}
_SUBSCRIPTION: Mapping[int, tuple[Any, ...]] = {200: (documents.Subscription,)}


def _get(path: str, handler: Handler, summary: str, answer: Any, query: Mapping[str, str] | None = None) -> Route:
    shown = answer if isinstance(answer, str) else (answer,)
    return Route(
        method="GET", path=path, handler=handler, summary=summary, auth="local", query=query or {}, answers={200: shown}
    )


def _post(path: str, handler: Handler, summary: str, body: Any, answers: Mapping[int, tuple[Any, ...]]) -> Route:
    return Route(method="POST", path=path, handler=handler, summary=summary, auth="local", body=body, answers=answers)
