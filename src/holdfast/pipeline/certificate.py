"""Certificates: signed statements of what the lake holds after a batch, against which a change of any value shows.

A certificate names the logs and ranges that were read, the version and the digest of the tables that prove, the findings and the
balance of all messages; it names the certificate before it by its hash, and is signed with the lake's own key.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.pipeline import balance
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.findings import Findings
from holdfast.pipeline.plan import DEVICE
from holdfast.pipeline.table import Range
from holdfast.protocol import keys
from holdfast.store import faults, files

PROVED = ("history", "message_fate", "receipt")
"""The tables of whose rows a certificate has a digest, too, in whichever files they are: all others are computed from these. Of every
table it covers the files, whose names have the digests of their contents."""

FINDINGS_MAX = 100
"""How many findings a certificate spells out; it counts all of them."""

KEY_FILE = "lake.key"
_DOMAIN = b"holdfast certificate 1\x00"


class KeyExposed(faults.Fault):
    what = "other users may open the key that signs the lake's certificates"
    remedy = "Find out who could have read it. If nobody, chmod 600 it; otherwise begin another lake."


class KeyLost(faults.Fault):
    what = "the key that signed this lake's certificates is not there"
    remedy = (
        "Put it back from a copy; or set the lake aside with `holdfast pipeline backfill --anew`, where it can still be asked and "
        "verified, and run again."
    )


@dataclass(frozen=True)
class Certificate:
    """A document, and the signature under it."""

    document: str  # canonical JSON
    pubkey: str
    signature: bytes

    @property
    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.document)
        return said

    @property
    def uncompared(self) -> list[str]:
        """The histories that were not compared yet with the tables of their relay or device; the oldest certificates name none."""
        return list(self.said.get("uncompared", ()))

    @property
    def heads(self) -> list[dict[str, Any]]:
        """Where the lake stands in every history, as the row of `run` has it."""
        return [
            {**head, "log_id": bytes.fromhex(head["log_id"]), "chain": _raw(head["chain"])}
            for head in self.said["heads"]
        ]

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The ranges that the batch read, as the row of `run` has them."""
        return [
            {
                "origin": log["origin"],
                "log_id": bytes.fromhex(log["log_id"]),
                "after": log["after"],
                "until": log["until"],
                "chain": _raw(log["chain_from"]),
            }
            for log in self.said["logs"]
        ]

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.document.encode()).hexdigest()

    def is_signed(self) -> bool:
        return keys.verify(self.pubkey, signed_digest(self.document), self.signature)


@dataclass(frozen=True)
class Facts:
    """What the certificate of a batch says."""

    number: int
    at: int
    ranges: Sequence[Range]
    heads: Sequence[Mapping[str, Any]]
    versions: Mapping[str, int]
    digests: Mapping[str, Digest]
    listings: Mapping[str, str]
    findings: Findings
    balance: Mapping[str, int]
    uncompared: Sequence[str]


def write(facts: Facts, previous: Certificate | None, secret: bytes) -> Certificate:
    """Make and sign the certificate of a batch."""
    devices = sorted(head["origin"] for head in facts.heads if head["origin"].startswith(DEVICE))
    chains = {head["origin"]: head["chain"] for head in facts.heads}
    said = {
        "batch": facts.number,
        "at": facts.at,
        "previous": None if previous is None else previous.hash,
        "logs": [_log(one, chains) for one in facts.ranges],
        "heads": [{**head, "log_id": head["log_id"].hex(), "chain": _hex(head["chain"])} for head in facts.heads],
        "versions": dict(facts.versions),
        "digests": {name: {"rows": one.rows, "digest": one.text()} for name, one in facts.digests.items()},
        "files": dict(facts.listings),
        "devices": devices,
        "scope": "relay and devices" if devices else "relay-internal only",
        "findings": _findings(facts.findings),
        "uncompared": list(facts.uncompared),
        "balance": dict(facts.balance),
        "balance_holds": balance.holds(facts.balance),
    }
    document = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    signature = keys.sign(secret, signed_digest(document), os.urandom(keys.AUX_BYTES))
    return Certificate(document, keys.public_key(secret), signature)


def _log(one: Range, chains: Mapping[str, bytes | None]) -> dict[str, Any]:
    return {
        "origin": one.origin,
        "log_id": one.log_id.hex(),
        "after": one.after,
        "until": one.until,
        "chain_from": _hex(one.chain),
        "chain_to": _hex(chains.get(one.origin)),
    }


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


def _raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _findings(findings: Findings) -> dict[str, Any]:
    names, count = ("kind", "key", "detail", "is_violation"), findings.count()
    first = [{name: one[name] for name in names} for one in findings.first(FINDINGS_MAX)]
    return {"violations": count.violations, "kinds": dict(count.kinds), "first": first}


def signed_digest(document: str) -> bytes:
    return hashlib.sha256(_DOMAIN + document.encode()).digest()


def lake_key(private: Path, before: Certificate | None = None) -> bytes:
    """The secret key of a lake. It is made for the first certificate; later it has to be the key that signed the one `before`."""
    path = private / KEY_FILE
    if not path.exists() and before is None:
        files.write_new(path, keys.nsec(os.urandom(keys.SECRET_BYTES)).encode() + b"\n")
    if not path.exists():
        raise KeyLost(str(path))
    if path.stat().st_mode & 0o077:
        raise KeyExposed(str(path))
    found = keys.read_nsec(path.read_text().strip())
    if before is not None and keys.public_key(found) != before.pubkey:
        raise KeyLost(str(path), f"its public key is {keys.public_key(found)}, not {before.pubkey}")
    return found
