"""Jobs that run side by side, each as soon as the jobs that it needs are done.

With few rows, most of a table's time is one thread that plans it; other tables can be planned meanwhile.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter


def do_each(needs: Mapping[str, Collection[str]], at_once: int, do: Callable[[str], None]) -> None:
    """Run every named job, `at_once` in parallel; after a failure start no more and wait for the running ones."""
    if at_once == 1:  # in this thread, where an interrupt stops it at once
        for name in TopologicalSorter(needs).static_order():
            do(name)
        return
    order, waiting = TopologicalSorter(needs), _waiting_for(needs)
    order.prepare()
    ready: list[str] = []
    under_way: dict[Future[None], str] = {}
    with ThreadPoolExecutor(at_once, "table") as threads:
        while order.is_active():
            ready = sorted([*ready, *order.get_ready()], key=lambda name: -len(waiting[name]))
            begun, ready = ready[: at_once - len(under_way)], ready[at_once - len(under_way) :]
            under_way |= {threads.submit(do, name): name for name in begun}
            for one in wait(under_way, return_when=FIRST_COMPLETED).done:
                name = under_way.pop(one)
                one.result()
                order.done(name)


def _waiting_for(needs: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """For each job all jobs that wait for it, directly or not: the one that most wait for starts first."""
    found: dict[str, set[str]] = {name: set() for name in needs}
    for name in reversed(list(TopologicalSorter(needs).static_order())):
        for need in needs[name]:
            found[need] |= {name} | found[name]
    return found
