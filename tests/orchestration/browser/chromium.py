"""A headless Chromium, driven by its DevTools protocol, as far as tests need to look at a page and click."""

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from websockets.sync.client import connect

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60
LOOK_S = 0.25


class Page:
    """One page of a separate Chromium, whose profile is in `home`. The page must be closed."""

    def __init__(self, home: Path, *, width: int = 1600, height: int = 900) -> None:
        """Start the browser. Raise FileNotFoundError if none is installed, or TimeoutError if it does not answer."""
        program = next((found for name in COMMANDS if (found := shutil.which(name))), None)
        if program is None:
            raise FileNotFoundError("no Chromium on this machine: on Debian, apt-get install chromium")
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += ["--remote-debugging-port=0", f"--user-data-dir={home}", f"--window-size={width},{height}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._program = subprocess.Popen([program, *arguments, "about:blank"], **quiet)
        self._numbers = itertools.count(1)
        port = waited(lambda: self._port(home), START_S, "Chromium does not start")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=START_S) as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        self._open = ExitStack()
        self._socket = self._open.enter_context(connect(page["webSocketDebuggerUrl"], max_size=None))

    def open(self, url: str) -> None:
        self._command("Page.navigate", url=url)

    def evaluate(self, expression: str) -> object:
        asked = self._command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return asked.get("result", {}).get("value")

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def until(self, text: str, timeout_s: float) -> None:
        waited(lambda: text in self.text(), timeout_s, lambda: f"{text!r} is not on the page, but\n{self.text()}")

    def click(self, label: str, timeout_s: float) -> None:
        button = (
            "[...document.querySelectorAll('button, a, [role=button]')]"
            f".find(each => each.innerText.trim() === {json.dumps(label)} && !each.disabled && each.offsetParent)"
        )
        waited(
            lambda: self.evaluate(f"(() => {{ const it = {button}; if (it) it.click(); return !!it; }})()"),
            timeout_s,
            lambda: f"there is no button {label!r} on the page, but\n{self.text()}",
        )

    def close(self) -> None:
        self._open.close()
        self._program.terminate()
        self._program.wait()

    def _command(self, method: str, **parameters: object) -> dict[str, object]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=START_S))
            if answer.get("id") == number:
                return answer.get("result", {})

    @staticmethod
    def _port(home: Path) -> str | None:
        said = home / "DevToolsActivePort"
        words = said.read_text().split() if said.exists() else []
        return words[0] if words else None


def waited(look, timeout_s, otherwise):
    """Call `look` until it returns something, and return that.

    Otherwise raise TimeoutError with the text `otherwise`.
    """
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > end:
            raise TimeoutError(otherwise() if callable(otherwise) else otherwise)
        time.sleep(LOOK_S)
    return seen
