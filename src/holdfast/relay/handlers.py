"""The relay's HTTP handlers, route by route, with who may call them."""

import asyncio
from collections.abc import Callable

import msgspec

from holdfast.export import exporter as export
from holdfast.protocol.event import Event
from holdfast.protocol.http_auth import SCHEME as NOSTR
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import IDENTIFIER, REFERENCE, TOPIC, check_range, read_integer
from holdfast.relay import documents, feed, information, metrics, queue
from holdfast.relay import token as tokens
from holdfast.relay.http_auth import HttpAuth
from holdfast.relay.publishing import MESSAGES, Publisher
from holdfast.relay.relay import Relay
from holdfast.relay.security import Auth
from holdfast.store import history
from holdfast.store.world import Clock
from holdfast.wire.condition import names, tagged_reply
from holdfast.wire.metrics import CONTENT_TYPE as METRICS_TEXT
from holdfast.wire.request import MET_LOG, read_document
from holdfast.wire.route import Reply, Request, Route, RouteTable, Stream, json_reply

BEARER = "bearer"


class Handlers:
    """The routes of a relay and their handlers."""

    def __init__(
        self,
        relay: Relay,
        exporter: export.Exporter,
        publisher: Publisher,
        counts: metrics.Metrics,
        is_draining: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._relay = relay
        self._exporter = exporter
        self._publisher = publisher
        self._metrics = counts
        self._is_draining = is_draining
        self._clock = clock
        self._auth = HttpAuth(clock)
        self._counting: asyncio.Future[bytes] | None = None  # the metrics that are being collected
        self.routes = RouteTable(self._routes())

    def _routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path=MESSAGES,
                handler=self._post_messages,
                summary="Publish one event, or an array of up to 100; each is answered by itself.",
                auth=Auth.SIGNED_EVENTS,
                headers={
                    "Holdfast-Log": "The log by which the sender knows this relay. With another one nothing is taken."
                },
                body=documents.Published,
                answers={201: (documents.Accepted,), 200: (documents.Accepted, documents.Answers)},
            ),
            Route(
                method="GET",
                path="/v1/meshes/{mesh}",
                handler=self._get_mesh,
                summary="A mesh with its members and topics.",
                auth=Auth.MEMBER,
                headers={"If-None-Match": "The ETag of the mesh as the caller knows it."},
                answers={200: (documents.Mesh,), 304: ""},
            ),
            Route(
                method="GET",
                path="/v1/meshes/{mesh}/grants",
                handler=self._get_grants,
                summary="The caller's own grants of a topic's keys.",
                auth=Auth.MEMBER,
                query={"topic": "The topic's name."},
                answers={200: (documents.Grants,)},
            ),
            Route(
                method="GET",
                path="/v1/meshes/{mesh}/fates",
                handler=self._get_fates,
                summary="What became of the caller's own messages, in the order in which it happened.",
                auth=Auth.MEMBER,
                query={
                    "after": "Only what happened behind this position.",
                    "limit": f"Enough when there are so many, {queue.FATES_MAX} at most; those of one entry stay together.",
                },
                answers={200: (documents.Fates,)},
            ),
            Route(
                method="GET",
                path="/v1/meshes/{mesh}/sends/{client_message_id}",
                handler=self._get_send,
                summary="Whether the caller's own id was consumed, and by which event.",
                auth=Auth.MEMBER,
                answers={200: (documents.Send,)},
            ),
            Route(
                method="POST",
                path="/v1/messages/{message_id}/moderation",
                handler=self._post_moderation,
                summary="Close what nobody has of a message yet.",
                auth=Auth.OPERATOR,
                body=documents.Moderation,
                answers={200: (documents.Moderated,)},
            ),
            Route(
                method="GET",
                path="/v1/export/{table}",
                handler=self._get_export,
                summary="A page of a table as an Arrow stream.",
                auth=Auth.TOKEN,
                query={
                    "after": "Only what lies behind this position.",
                    "until": "And not behind this one.",
                    "columns": "Only these columns, with commas between them; payloads only when named.",
                },
                answers={200: export.CONTENT_TYPE},
            ),
            Route(
                method="GET",
                path="/v1/consumers/{name}",
                handler=self._get_consumer,
                summary="How far a consumer has read.",
                auth=Auth.CONSUMER,
                answers={200: (documents.Consumer,)},
            ),
            Route(
                method="PUT",
                path="/v1/consumers/{name}",
                handler=self._put_consumer,
                summary="Register a consumer, or move its checkpoint forward.",
                auth=Auth.CONSUMER,
                body=documents.Checkpoint,
                answers={200: (documents.Consumer,)},
            ),
            Route(
                method="GET",
                path="/",
                handler=self._get_information,
                summary="Who the relay is and what it takes (NIP-11). A WebSocket here speaks NIP-01.",
                answers={200: (documents.Information,)},
            ),
            Route(
                method="GET",
                path="/livez",
                handler=self._get_livez,
                summary="It lives.",
                answers={200: (documents.Health,)},
            ),
            Route(
                method="GET",
                path="/readyz",
                handler=self._get_readyz,
                summary="It takes events.",
                answers={200: (documents.Health,)},
            ),
            Route(
                method="GET",
                path="/metrics",
                handler=self._get_metrics,
                summary="Counts for Prometheus.",
                answers={200: "text/plain"},
            ),
            Route(
                method="GET",
                path="/openapi.json",
                handler=self._get_openapi,
                summary="This description.",
                answers={200: "application/json"},
            ),
        ]

    async def _post_messages(self, request: Request) -> Reply:
        return await self._publisher.body(request.body, request.local, request.headers.get(MET_LOG))

    async def _get_mesh(self, request: Request) -> Reply:
        mesh = request.parameters["mesh"]
        IDENTIFIER.check(mesh, "mesh")
        signed = self._signed(request)
        known = request.headers.get("if-none-match", "")
        found = await self._relay.mesh(mesh, signed.pubkey, knows=lambda tag: names(known, tag))
        self._auth.spend(signed)
        return tagged_reply(found.tag, found.document)

    async def _get_grants(self, request: Request) -> Reply:
        mesh, topic = request.parameters["mesh"], request.query.get("topic", "")
        IDENTIFIER.check(mesh, "mesh")
        TOPIC.check(topic, "topic")
        signed = self._signed(request)
        found = await self._relay.grants(mesh, topic, signed.pubkey)
        self._auth.spend(signed)
        return json_reply(found)

    async def _get_fates(self, request: Request) -> Reply:
        mesh = request.parameters["mesh"]
        IDENTIFIER.check(mesh, "mesh")
        after = _number(request, "after", 0, 0, 2**63 - 1)
        limit = _number(request, "limit", queue.FATES_MAX, 1, queue.FATES_MAX)
        signed = self._signed(request)
        found = await self._relay.look(lambda tx: queue.fates(tx, mesh, signed.pubkey, after, limit))
        self._auth.spend(signed)
        return json_reply(found)

    async def _get_send(self, request: Request) -> Reply:
        mesh, client_message_id = request.parameters["mesh"], request.parameters["client_message_id"]
        IDENTIFIER.check(mesh, "mesh")
        REFERENCE.check(client_message_id, "client_message_id")
        signed = self._signed(request)
        found = await self._relay.look(lambda tx: queue.find_send(tx, mesh, signed.pubkey, client_message_id))
        self._auth.spend(signed)
        return json_reply(found)

    async def _post_moderation(self, request: Request) -> Reply:
        signed = self._operator(request)
        asked = read_document(request.body, documents.Moderation, "moderation")
        message_id, now = request.parameters["message_id"], self._relay.now
        IDENTIFIER.check(message_id, "message_id")
        done = await self._relay.decide(lambda tx: queue.moderate(tx, now(), message_id, signed.pubkey, asked.reason))
        return json_reply(done)

    async def _get_export(self, request: Request) -> Stream:
        self._token_consumer(request)
        query = export.read_query(request.parameters["table"], request.query)
        return self._exporter.open(query.table, query.after, query.until, query.columns)

    async def _get_consumer(self, request: Request) -> Reply:
        return json_reply(await self._relay.consumer(self._named_consumer(request)))

    async def _put_consumer(self, request: Request) -> Reply:
        name = self._named_consumer(request)
        checkpoint = read_document(request.body, documents.Checkpoint, "checkpoint")
        return json_reply(await self._relay.move_consumer(name, bytes.fromhex(checkpoint.log_id), checkpoint.seq))

    async def _get_information(self, request: Request) -> Reply:
        first, oldest, log_id = await self._relay.look(
            lambda tx: (feed.min_seq(tx), feed.min_created_at(tx), history.head(tx).log_id)
        )
        document = information.information(self._relay.settings, self._relay.pubkey, log_id, first, oldest)
        wanted = information.NOSTR_JSON in request.headers.get("accept", "")
        return Reply(
            body=msgspec.json.encode(document),
            content_type=information.NOSTR_JSON if wanted else "application/json",
            headers={"access-control-allow-origin": "*"},  # NIP-11 requires it, and the document is public
        )

    async def _get_livez(self, request: Request) -> Reply:
        return json_reply(documents.Health(ok=True))

    async def _get_readyz(self, request: Request) -> Reply:
        if self._is_draining():
            raise Refused(Refusal.SHUTTING_DOWN, "it finishes what is under way")
        if not self._relay.ready:
            raise Refused(Refusal.UNAVAILABLE, "it takes no events; its log says why")
        return json_reply(documents.Health(ok=True))

    async def _get_metrics(self, request: Request) -> Reply:
        # Collected once for all concurrent requests: it reads all members, and anybody may ask.
        if self._counting is None or self._counting.done():
            self._counting = asyncio.ensure_future(self._relay.off_the_loop(self._metrics.text))
        return Reply(body=await asyncio.shield(self._counting), content_type=METRICS_TEXT)

    async def _get_openapi(self, request: Request) -> Reply:
        url = self._relay.settings.public_url or min(request.urls).removesuffix("/openapi.json")
        return json_reply(information.openapi(self.routes.routes, url))

    def _signed(self, request: Request) -> Event:
        """The event that signs this request. It is marked as used (`spend`) only once the signer is known to be allowed."""
        scheme, credentials = _credentials(request)
        if scheme != NOSTR.lower():
            raise Refused(Refusal.AUTH_REQUIRED, "this takes an Authorization header with a signed event (NIP-98)")
        return self._auth.verify(credentials, request.method, request.urls, request.body)

    def _token_consumer(self, request: Request) -> str:
        scheme, credentials = _credentials(request)
        if scheme != BEARER:
            raise Refused(Refusal.TOKEN_INVALID, "this takes an Authorization header with a token")
        return tokens.verify(credentials, self._relay.pubkey, self._clock())

    def _named_consumer(self, request: Request) -> str:
        """The consumer named in the path, if the caller may know and move it."""
        name = request.parameters["name"]
        IDENTIFIER.check(name, "consumer")
        if _credentials(request)[0] == BEARER:
            if self._token_consumer(request) != name:
                raise Refused(Refusal.NOT_PERMITTED, "the token is another consumer's")
            return name
        self._operator(request)
        return name

    def _operator(self, request: Request) -> Event:
        """The event of the operator who signed this request, marked as used."""
        signed = self._signed(request)
        if not self._relay.is_operator(signed.pubkey):
            raise Refused(Refusal.NOT_PERMITTED, "this is for the relay's operators")
        self._auth.spend(signed)
        return signed


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    number = read_integer(text, name)
    check_range(number, name, least, most)
    return number


def _credentials(request: Request) -> tuple[str, str]:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return scheme.lower(), credentials.strip()
