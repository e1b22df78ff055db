"""Work side by side, each as soon as what it needs is done.

Of few rows most of a table's time is one thread that plans it, so others may plan theirs meanwhile.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from threading import Event


def do_each(needs: Mapping[str, Collection[str]], at_once: int, do: Callable[[str], None]) -> None:
    """Do all that is named, so many at once; where one fails no other is begun, and what was begun is waited for."""
    order, has_failed = TopologicalSorter(needs), Event()
    order.prepare()

    def unless_failed(name: str) -> None:
        if has_failed.is_set():
            return
        try:
            do(name)
        except BaseException:
            has_failed.set()
            raise

    under_way: dict[Future[None], str] = {}
    with ThreadPoolExecutor(at_once, "table") as threads:
        try:
            while order.is_active():
                under_way |= {threads.submit(unless_failed, name): name for name in order.get_ready()}
                for one in wait(under_way, return_when=FIRST_COMPLETED).done:
                    name = under_way.pop(one)
                    one.result()
                    order.done(name)
        except BaseException:  # ours, too: whoever is interrupted begins nothing any more
            has_failed.set()
            raise
