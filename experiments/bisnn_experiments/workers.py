"""Tasks in worker processes, several at a time; told to stop, the workers save what they have."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from bisnn.display import bars
from bisnn.errors import Interrupted, Stopped
from bisnn.runs.monitoring import signals


def run_all(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    show: bool,
    *,
    length: Callable[[Any], float],
    progress: Callable[[Any], float],
    before: Sequence[Sequence[Callable[[], None]]] = (),
) -> list[Any]:
    """`function(*task)` for each task, in the order of the tasks.

    Args:
        function: a function of a module, which the workers import.
        tasks: its arguments.
        jobs: workers.
        show: a bar.
        length: how long a task takes, in any unit. The longest are started first, so that none is
            left running alone.
        progress: how much of a task that is under way has been done, from 0 to 1.
        before: functions of modules that the workers call first, in stages: those of a stage at
            the same time.
    """
    others = multiprocessing.active_children()
    # numba's and torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    longest_first = sorted(range(len(tasks)), key=lambda i: -length(tasks[i]))
    waiting: set[Future[Any]] = set()
    with pool, bars(show=show, transient=False) as shown, signals() as caught:
        bar = shown.add_task("", total=len(tasks))
        try:
            for stage in before:
                waiting = set() if caught[0] else {_submit(pool, each) for each in stage}
                while waiting and not caught[0]:
                    done, waiting = wait(waiting, timeout=0.5)
                    for future in done:
                        future.result()
            started = {i: _submit(pool, function, *tasks[i]) for i in longest_first}
            futures = [started[i] for i in range(len(tasks))]
            waiting = set(futures)
            while waiting and not caught[0]:
                done, waiting = wait(waiting, timeout=0.5)
                for future in done if not caught[0] else ():
                    future.result()  # raises what went wrong
                both = zip(tasks, futures, strict=True)
                under_way = sum(progress(task) for task, future in both if future in waiting)
                finished = len(tasks) - len(waiting)
                text = f"{finished} of {len(tasks)} runs"
                shown.update(bar, completed=finished + under_way, description=text)
        except BrokenProcessPool:
            raise Stopped(
                "a worker process died: was it killed, or out of memory? The same command goes on"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if waiting:
                _stop([p for p in multiprocessing.active_children() if p not in others])
    if caught[0]:
        raise Interrupted("stopped and saved; the same command goes on", caught[0])
    return [future.result() for future in futures]


def _submit(
    pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any
) -> Future[Any]:
    with _workers_ignore_ctrl_c():  # it may start one
        return pool.submit(function, *arguments)


def _stop(processes: list[Any]) -> None:
    for process in processes:
        process.terminate()  # SIGTERM: training saves and stops
    for process in processes:
        process.join()


@contextmanager
def _workers_ignore_ctrl_c() -> Iterator[None]:
    """Let processes started in here ignore Ctrl-C, which a terminal sends to all of them: this one
    tells them to stop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
