"""A process that forks while it has a log open: the child gets an error, never a way to lose what others wrote."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_forked_child_is_told_so_whether_it_uses_the_log_or_opens_it_again(path: Path) -> None:
    said = _run(
        """
        import os, sys, threading
        from holdfast import OperationLog, faults
        path = sys.argv[1]
        log = OperationLog(path)
        stop = threading.Event()
        busy = [threading.Thread(target=lambda: [log.append_next(b"a" * 32, b"x") for _ in iter(stop.is_set, True)])
                for _ in range(3)]  # whatever lock they hold at the fork stays held in the child
        for thread in busy:
            thread.start()
        for use in (lambda: log.append_next(b"a" * 32, b""), lambda: log.outbox(), lambda: OperationLog(path),
                    lambda: log.backup(path + ".copy")):
            child = os.fork()
            if child == 0:
                try:
                    use()
                except faults.Forked:
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, use
        stop.set()
        for thread in busy:
            thread.join()
        log.close()
        print("told")
        """,
        str(path),
    )
    assert said == "told"


def test_a_child_that_ends_takes_nothing_away_from_those_who_use_the_log(path: Path) -> None:
    """The child inherits connections; were they closed with it, the journal of whoever writes now would go."""
    said = _run(
        """
        import os, signal, subprocess, sys, time
        from holdfast import OperationLog
        path = sys.argv[1]
        log = OperationLog(path)
        log.append_next(b"a" * 32, b"parent")
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.read(go[0], 1)
            sys.exit(0)  # with all the tidying that an interpreter does
        log.close()
        writer = '''
        import os, sys, signal
        from holdfast import OperationLog
        log = OperationLog(sys.argv[1])
        for _ in range(5):
            log.append_next(b"b" * 32, b"acknowledged")
        os.kill(os.getpid(), signal.SIGKILL)
        '''.replace("        ", "")
        subprocess.run([sys.executable, "-c", writer, path])
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        with OperationLog(path) as log:
            print(len(log.outbox()))
        """,
        str(path),
    )
    assert said == "6"


def test_a_backup_put_by_hand_over_a_log_that_died_is_not_mixed_with_it(path: Path) -> None:
    said = _run(
        """
        import os, subprocess, sys
        from holdfast import OperationLog, faults
        path = sys.argv[1]
        dying = '''
        import os, sys, signal
        from holdfast import OperationLog
        log = OperationLog(sys.argv[1])
        log.append_next(b"a" * 32, b"before")
        log.backup(sys.argv[1] + ".bak")
        for _ in range(3):
            log.append_next(b"a" * 32, b"after")
        print(log.epoch.hex(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        '''.replace("        ", "")
        epoch = subprocess.run([sys.executable, "-c", dying, path], capture_output=True, text=True).stdout.strip()
        os.unlink(path)
        os.rename(path + ".bak", path)
        try:
            OperationLog(path)
            print("opened")
        except faults.StaleJournal as fault:
            print("refused")
        os.rename(path, path + ".bak")
        subprocess.run([sys.executable, "-m", "holdfast.cli", "log", "restore", path + ".bak", path], check=True)
        with OperationLog(path) as log:
            print([entry.blob for entry in log.outbox()], log.epoch.hex() != epoch)
        """,
        str(path),
    )
    assert said.splitlines() == [
        "refused",
        f"restored {path}: 1 entries, 1 of them in the outbox",
        "[b'before'] True",
    ]


def test_a_forked_child_asks_on_connections_of_its_own_and_gets_no_answer_of_its_parent(path: Path) -> None:
    said = _run(
        """
        import os, socket, sys, threading
        from holdfast.device.ipc_link import Link

        def answer(near, number):
            while near.recv(65_536):
                near.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 1\\r\\n\\r\\n%d" % number)

        def take():
            for number in range(1, 9):
                threading.Thread(target=answer, args=(listener.accept()[0], number), daemon=True).start()

        listener = socket.socket(socket.AF_UNIX)
        listener.bind(sys.argv[1])
        listener.listen()
        threading.Thread(target=take, daemon=True).start()
        link = Link(path=sys.argv[1])
        numbers = [link.ask("GET", "/", int)]
        child = os.fork()
        if child == 0:
            number = link.ask("GET", "/", int)
            link.close()
            os._exit(number)
        numbers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        numbers.append(link.ask("GET", "/", int))
        print(numbers)
        """,
        str(path),
    )
    assert said == "[1, 2, 1]"


def test_a_forked_child_may_leave_the_stream_that_its_parent_reads(path: Path) -> None:
    said = _run(
        """
        import os, socket, sys, threading
        from holdfast.device.ipc_link import Link

        def take():
            while True:
                near, _ = listener.accept()
                near.recv(65_536)
                near.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\nfirst\\n")
                go.wait()
                near.sendall(b"second\\n")
                near.close()

        listener, go = socket.socket(socket.AF_UNIX), threading.Event()
        listener.bind(sys.argv[1])
        listener.listen()
        threading.Thread(target=take, daemon=True).start()
        link = Link(path=sys.argv[1])
        with link.stream("/", {}, {}) as lines:
            found = [next(lines)]
            child = os.fork()
            if child == 0:
                link.interrupt()
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            go.set()
            found += lines
        print(found)
        """,
        str(path),
    )
    assert said.splitlines() == ["7", "['first', 'second']"]
