"""Holdfast carries messages and document snapshots between devices and agents, and never loses one silently."""

TYPE_CHECKING = False  # type checkers know this name; the module of it would cost a hook more than its commit

if TYPE_CHECKING:
    from holdfast.device.client import Client
    from holdfast.device.feed_client import FeedClient
    from holdfast.device.ipc_documents import Message
    from holdfast.device.ipc_link import DaemonLost, NoDaemon, RequestRefused, SendUnanswered
    from holdfast.device.operation_log import InvalidEntry, OperationLog
    from holdfast.device.operations import Entry, SequencesExhausted, SequenceTaken
    from holdfast.device.sync_client import SyncClient
    from holdfast.pipeline.source import register
    from holdfast.store import faults
    from holdfast.store.faults import Fault

__all__ = [
    "Client",
    "DaemonLost",
    "Entry",
    "Fault",
    "FeedClient",
    "InvalidEntry",
    "Message",
    "NoDaemon",
    "OperationLog",
    "RequestRefused",
    "SendUnanswered",
    "SequenceTaken",
    "SequencesExhausted",
    "SyncClient",
    "__version__",
    "faults",
    "register",
]
__version__ = "0.1.0"

_HOMES = {
    "Client": "holdfast.device.client",
    "DaemonLost": "holdfast.device.ipc_link",
    "Entry": "holdfast.device.operations",
    "Fault": "holdfast.store.faults",
    "FeedClient": "holdfast.device.feed_client",
    "InvalidEntry": "holdfast.device.operation_log",
    "Message": "holdfast.device.ipc_documents",
    "NoDaemon": "holdfast.device.ipc_link",
    "OperationLog": "holdfast.device.operation_log",
    "RequestRefused": "holdfast.device.ipc_link",
    "SendUnanswered": "holdfast.device.ipc_link",
    "SequenceTaken": "holdfast.device.operations",
    "SequencesExhausted": "holdfast.device.operations",
    "SyncClient": "holdfast.device.sync_client",
    "register": "holdfast.pipeline.source",
}


def __getattr__(name: str) -> object:
    from importlib import import_module  # likewise

    if name == "faults":
        return import_module("holdfast.store.faults")
    # Loaded when first asked for: a program that needs one part does not pay for the start of all of them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
