"""Chromium for tests, driven through a pipe by its own protocol (CDP): pages, keys, mouse, what it
says on its console and what it asks from any network.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-component-update", "--disable-background-networking", "--disable-sync"),
)


def chromium() -> str:
    """Its path; without one, the test skips."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


class Tab:
    """One page of a browser."""

    def __init__(self, process: subprocess.Popen, to: int, back: int):
        self.process, self.to, self.back = process, to, back
        self.number, self.left = 0, b""
        self.events: list[dict[str, Any]] = []
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol; events that come meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.left:
            some = os.read(self.back, 1 << 20)
            assert some, "Chromium ended"
            self.left += some
        message, _, self.left = self.left.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Of JavaScript; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button="left",
            buttons=1,
            clickCount=1,
        )

    def drag(self, places: list[tuple[float, float]]) -> None:
        """Press at the first place, move along the others, let go."""
        self.mouse("mousePressed", *places[0])
        for place in places[1:]:
            self.mouse("mouseMoved", *place)
        self.mouse("mouseReleased", *places[-1])

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def complaints(self) -> list[str]:
        """Errors and warnings on the console since the page was opened, and exceptions."""
        self.value("0")
        found = []
        for event in self.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(about["exceptionDetails"])[:500])
            elif event.get("method") == "Log.entryAdded":
                found.append(about["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled":
                found.append(json.dumps(about["args"])[:500])
        return found

    def requests(self) -> list[str]:
        """All addresses that the page has asked for since it was opened."""
        self.value("0")
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, for people."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A browser with one tab, whose profile lies in the folder."""
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [chromium(), *OPTIONS, "--remote-debugging-pipe", profile]
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()

    def connect() -> None:  # the protocol's pipes are the file descriptors 3 and 4
        ours, theirs = os.dup(to_read), os.dup(back_write)
        os.dup2(ours, 3)
        os.dup2(theirs, 4)

    process = subprocess.Popen(
        command, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(back_write)
    try:
        found = Tab(process, to_write, back_read)
        yield found
        found.session = ""
        found.call("Browser.close")
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(back_read)
