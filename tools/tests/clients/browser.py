"""A headless Chromium, driven through its debugging pipe: KJIT_TEST_BROWSER is the browser; screenshots go to KJIT_TEST_SCREENSHOTS, if that is set.
Needs Python and nothing else. It ends with the program."""
import atexit
import base64
import json
import os
import subprocess
import tempfile
import time

folder = os.environ.get("KJIT_TEST_SCREENSHOTS")
to_read, to_write = os.pipe()
from_read, from_write = os.pipe()


def pipes():
    # Chromium reads commands from descriptor 3 and writes answers to 4. This process may use
    # those numbers itself, so its descriptors are copied first.
    a, b = os.dup(to_read), os.dup(from_write)
    os.dup2(a, 3)
    os.dup2(b, 4)


home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
browser = subprocess.Popen(
    [os.environ["KJIT_TEST_BROWSER"], "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={home.name}", "about:blank"],
    preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
os.close(to_read)
os.close(from_write)
answers, number, problems = os.fdopen(from_read, "rb", 0), 0, []
held = b""


def message():
    global held
    while b"\0" not in held:
        more = answers.read(65536)
        assert more, "the browser ended"
        held += more
    one, held = held.split(b"\0", 1)
    return json.loads(one)


def command(method, session=None, **params):
    global number
    number += 1
    call = {"id": number, "method": method, "params": params}
    if session:
        call["sessionId"] = session
    os.write(to_write, json.dumps(call).encode() + b"\0")
    while True:
        answer = message()
        # Recommendations of the browser are not errors.
        told = answer.get("params", {}).get("entry", {}).get("level") in (None, "error")
        if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded") and told:
            problems.append(answer["params"])
        if answer.get("id") == number:
            assert "error" not in answer, answer
            return answer["result"]


target = command("Target.createTarget", url="about:blank")["targetId"]
page = command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
for domain in ("Runtime", "Log", "Page"):
    command(f"{domain}.enable", page)


def js(expression):
    result = command("Runtime.evaluate", page, expression=expression, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in result, result
    return result["result"].get("value")


def wait(what, expression, seconds=60):
    until = time.time() + seconds
    while not js(expression):
        assert time.time() < until, f"{what}: {js('document.body.innerText')}"
        time.sleep(0.1)


def screenshot(name):
    if folder:
        os.makedirs(folder, exist_ok=True)
        picture = command("Page.captureScreenshot", page, format="png")["data"]
        with open(os.path.join(folder, name + ".png"), "wb") as file:
            file.write(base64.b64decode(picture))


def key(name, code):
    for kind in ("keyDown", "keyUp"):
        command("Input.dispatchKeyEvent", page, type=kind, key=name, code=name, windowsVirtualKeyCode=code, text="\r" if name == "Enter" and kind == "keyDown" else "")


def ask(text):
    js("document.getElementById('text').focus()")
    command("Input.insertText", page, text=text)
    key("Enter", 13)


def end():
    browser.kill()
    browser.wait()


atexit.register(end)
