"""Holdfast carries messages and document snapshots between devices and agents, and never loses one silently."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.device.client import Client
    from holdfast.device.ipc_documents import Message
    from holdfast.device.ipc_link import NoDaemon, RequestRefused
    from holdfast.device.operation_log import InvalidEntry, OperationLog
    from holdfast.device.operations import Entry, SequencesExhausted, SequenceTaken
    from holdfast.pipeline.source import register
    from holdfast.store import faults
    from holdfast.store.faults import Fault

__all__ = [
    "Client",
    "Entry",
    "Fault",
    "InvalidEntry",
    "Message",
    "NoDaemon",
    "OperationLog",
    "RequestRefused",
    "SequenceTaken",
    "SequencesExhausted",
    "__version__",
    "faults",
    "register",
]
__version__ = "0.1.0"

_HOMES = {
    "Client": "holdfast.device.client",
    "Entry": "holdfast.device.operations",
    "Fault": "holdfast.store.faults",
    "InvalidEntry": "holdfast.device.operation_log",
    "Message": "holdfast.device.ipc_documents",
    "NoDaemon": "holdfast.device.ipc_link",
    "OperationLog": "holdfast.device.operation_log",
    "RequestRefused": "holdfast.device.ipc_link",
    "SequenceTaken": "holdfast.device.operations",
    "SequencesExhausted": "holdfast.device.operations",
    "register": "holdfast.pipeline.source",
}


def __getattr__(name: str) -> object:
    if name == "faults":
        return import_module("holdfast.store.faults")
    # Loaded when first asked for: a program that needs one part does not pay for the start of all of them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
