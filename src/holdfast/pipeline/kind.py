"""The two kinds of lake: a relay's, and an owner's index of messages, which is known by the directory of one of its tables."""

from holdfast.pipeline import catalog
from holdfast.pipeline.lake import Lake, LakeOther
from holdfast.pipeline.table import Table
from holdfast.store import files

_OWN = "search_posting"


def tables_of(lake: Lake) -> dict[str, Table]:
    """The tables that a lake of this kind has, without the functions that compute them."""
    return catalog.shown(catalog.OWN if is_own(lake) else catalog.RELAYS)


def is_own(lake: Lake) -> bool:
    """Whether a lake is an owner's index of messages."""
    return lake.root(_OWN).is_dir()


def check_relays(lake: Lake) -> None:
    """Refuse an owner's index where a relay's lake is meant."""
    if is_own(lake):
        raise LakeOther(str(lake.path), "it is an index of messages")


def make_own(lake: Lake) -> None:
    """Mark a lake as an owner's index before its first batch, so that an interrupted first batch leaves no doubt about the kind."""
    if not is_own(lake) and lake.root("history").is_dir():
        raise LakeOther(str(lake.path), "it is a relay's")
    lake.root(_OWN).mkdir(mode=0o700, exist_ok=True)
    files.sync_directory(lake.path)
