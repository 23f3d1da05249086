"""A real browser without a window, controlled over the DevTools protocol through a pipe. Standard library only."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed():
    """The browser's path, or None: the one in TRIREME_CHROMIUM, or the first that the system has."""
    named = os.environ.get("TRIREME_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. `errors` has the errors that the page logs or throws."""

    def __init__(self, path, width=1200, height=820):
        self.profile = tempfile.mkdtemp(prefix="trireme-browser-")
        self.number, self.buffer, self.errors = 0, b"", []
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()

        def wire():
            # The browser reads from 3 and writes to 4. The ends are copied first, because either may already be 3 or 4.
            commands, answers = os.dup(to_browser), os.dup(from_browser)
            os.dup2(commands, 3)
            os.dup2(answers, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        command = [path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self.profile}"]
        command += [f"--window-size={width},{height}", "--no-proxy-server"]
        self.process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method, limit=60, **parameters):
        """Sends a command and waits for its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        give_up = time.monotonic() + limit
        while True:
            answer = self.message(give_up, method)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.hear(answer)

    def message(self, give_up, waiting_for):
        while b"\0" not in self.buffer:
            left = give_up - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                raise TimeoutError(f"the browser does not answer {waiting_for}")
            piece = os.read(self.read, 1 << 16)
            if not piece:
                raise RuntimeError(f"the browser has ended with code {self.process.wait()}")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def hear(self, event):
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] == "security":
            self.errors.append(event["params"]["entry"]["text"])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"loading {url}", f"location.href === {url!r} && document.readyState === 'complete' && document.body !== null")

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, what, expression, limit=30):
        """Waits until the expression is true; the error names `what`."""
        give_up = time.monotonic() + limit
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            if time.monotonic() > give_up:
                raise AssertionError(f"{what}: not within {limit} s; the page says:\n{self.evaluate('document.body?.innerText')}")
            time.sleep(0.1)

    def press(self, key, code, number, modifiers=0, text=None):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number, modifiers=modifiers, **extra)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def scheme(self, name):
        """Sets light or dark mode."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def resize(self, width, height):
        """Gives the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.profile, ignore_errors=True)
