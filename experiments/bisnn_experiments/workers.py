"""Tasks in worker processes, several at a time; told to stop, the workers save what they have."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import forkserver
from typing import Any

from bisnn.display import bars
from bisnn.errors import Interrupted, Stopped


def run_all(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    show: bool,
    *,
    length: Callable[[Any], float],
    progress: Callable[[Any], float],
    before: Sequence[Sequence[Callable[[], None]]] = (),
    meanwhile: Callable[[], None] = lambda: None,
    things: str = "runs",
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
        meanwhile: what this process does while the workers are at the first stage.
        things: what the tasks are, for the bar.
    """
    from bisnn.runs.monitoring import signals  # with PyTorch, which `start_server` is to outrun

    longest_first = sorted(range(len(tasks)), key=lambda i: -length(tasks[i]))
    with ExitStack() as until_all_have_stopped, _pool(jobs, function.__module__) as pool:
        first = [_submit(pool, each) for each in before[0]] if before else []
        meanwhile()
        caught = until_all_have_stopped.enter_context(signals())
        with bars(show=show, transient=False) as shown:
            bar = shown.add_task("", total=len(tasks))

            def follow(waiting: set[Future[Any]]) -> None:
                both = zip(tasks, futures, strict=True)
                under_way = sum(progress(task) for task, future in both if future in waiting)
                finished = len(tasks) - len(waiting)
                text = f"{finished} of {len(tasks)} {things}"
                shown.update(bar, completed=finished + under_way, description=text)

            _await(first, caught)
            for stage in before[1:]:
                _await([_submit(pool, each) for each in stage], caught)
            started = {i: _submit(pool, function, *tasks[i]) for i in longest_first}
            futures = [started[i] for i in range(len(tasks))]
            _await(futures, caught, follow)
        return [future.result() for future in futures]


def start_server(*modules: str) -> None:
    """Start the process that workers will be forked from, which imports `modules` meanwhile."""
    context = _context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(list(modules))
        with _workers_ignore_ctrl_c():
            forkserver.ensure_running()


def _context() -> multiprocessing.context.BaseContext:
    kinds = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in kinds else "spawn")


@contextmanager
def _pool(jobs: int, module: str) -> Iterator[ProcessPoolExecutor]:
    """Workers, which are stopped where the block does not end well.

    They are forked from a process that has imported `module`, once for all, and has no threads:
    numba's and torch's do not survive a fork.
    """
    others, context = multiprocessing.active_children(), _context()
    context.set_forkserver_preload([module])  # ignored by a server that runs already
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            _stop([p for p in multiprocessing.active_children() if p not in others])
            if isinstance(error, BrokenProcessPool):
                raise Stopped(
                    "a worker process died: was it killed, or out of memory? The same command goes "
                    "on"
                ) from None
            raise


def _await(
    futures: Sequence[Future[Any]],
    caught: Sequence[int],
    follow: Callable[[set[Future[Any]]], None] = lambda waiting: None,
) -> None:
    """Wait for all, or until a signal is caught, which raises, as does what goes wrong in one."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.5)
        if caught[0]:
            raise Interrupted("stopped and saved; the same command goes on", caught[0])
        for future in done:
            future.result()
        follow(waiting)


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
