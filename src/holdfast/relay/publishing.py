"""Publishing over HTTP: a body is one event or an array of them, and every event gets its own answer."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay.answer import Answer
from holdfast.relay.metrics import Metrics
from holdfast.relay.offer import Lane
from holdfast.relay.relay import Publication, Relay
from holdfast.wire.problem import PROBLEM_JSON
from holdfast.wire.route import JSON, Reply, json_reply

MESSAGES = "/v1/messages"

_ABSENT = Raw(b"")


class Publisher:
    """Passes events to the relay, and counts its answers."""

    def __init__(self, relay: Relay, metrics: Metrics) -> None:
        self._relay = relay
        self._metrics = metrics
        self._array = _array_decoder(relay.settings.limits.events_per_request_max)

    async def events(self, raws: Sequence[bytes], local: bool, held: frozenset[Lane] = frozenset()) -> list[Answer]:
        """An answer to each event, in order; in `held` lanes nothing new is taken."""
        answers = await self._relay.publish(raws, local=local, held=held)
        self._metrics.answers(map(_code, answers))
        return answers

    async def body(self, body: bytes, local: bool, met: str | None = None) -> Reply:
        """The reply to a publishing request; `met` is the log id that the sender expects of this relay, if it sent one."""
        self._check_met(met)
        is_array = _is_array(body)
        answers = await self.events(self._split(body) if is_array else [body], local)
        return _reply(answers, is_array)

    def body_soon(
        self, body: bytes, local: bool, told: Callable[[Reply | Exception], None], met: str | None = None
    ) -> None:
        """Like `body`, without waiting: the reply is passed to `told`. Immediate refusals are raised."""
        self._check_met(met)
        is_array = _is_array(body)

        def answered(outcome: Sequence[Answer] | Exception) -> None:
            if isinstance(outcome, Exception):
                told(outcome)
                return
            self._metrics.answers(map(_code, outcome))
            told(_reply(outcome, is_array))

        self._relay.publish_soon(Publication(self._split(body) if is_array else [body], answered, local))

    def _check_met(self, met: str | None) -> None:
        """Refuse a device that does not know yet that this relay was restored.

        It must first offer again what it sent before and the relay has lost.
        """
        if met is not None and met != self._relay.log_id:
            raise Refused(Refusal.OTHER_LOG, f"this log is {self._relay.log_id}")

    def _split(self, body: bytes) -> list[bytes]:
        """The events of an array, each in the bytes it came in."""
        try:
            array = self._array.decode(body)
        except msgspec.ValidationError as error:  # elements may be anything here, so only their number can be wrong
            detail = f"at most {len(self._array.type.__struct_fields__)} events at once"
            raise Refused(Refusal.TOO_LARGE, detail) from error
        except (msgspec.DecodeError, RecursionError) as error:
            fault = ascii(str(error))[1:-1][:DETAIL_CHARACTERS_MAX]
            raise Refused(Refusal.MALFORMED, f"the array of events: {fault}") from error
        raws = [bytes(raw) for raw in msgspec.structs.astuple(array) if raw != _ABSENT]
        if not raws:
            raise Refused(Refusal.MALFORMED, "the array has no event")
        return raws


def _array_decoder(events_max: int) -> msgspec.json.Decoder[Any]:
    """A decoder that stops at the first element too many: a plain list would first hold all of them."""
    fields = [(f"event_{number}", Raw, _ABSENT) for number in range(events_max)]
    array = msgspec.defstruct("Events", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(array)


def _is_array(body: bytes) -> bool:
    return body.lstrip()[:1] == b"["


def _reply(answers: Sequence[Answer], is_array: bool) -> Reply:
    if is_array:
        return json_reply({"answers": [_item(answer) for answer in answers]})
    (answer,) = answers
    return Reply(
        status=answer.http_status,
        body=msgspec.json.encode(answer.body()),
        content_type=JSON if answer.accepted else PROBLEM_JSON,
        headers={} if answer.retry_after_s is None else {"retry-after": str(answer.retry_after_s)},
    )


def _code(answer: Answer) -> str:
    if answer.refusal is not None:
        return answer.refusal.value
    return "duplicate" if answer.members.get("duplicate") else "accepted"


def _item(answer: Answer) -> dict[str, Any]:
    item = {"status": answer.http_status, **answer.body()}
    return item if answer.retry_after_s is None else {**item, "retry_after_s": answer.retry_after_s}
