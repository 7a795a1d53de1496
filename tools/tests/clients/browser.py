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


def tab(url="about:blank"):
    """Opens another tab. Its session is the second argument of `js` and `wait`."""
    target = command("Target.createTarget", url=url)["targetId"]
    session = command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Runtime", "Log", "Page"):
        command(f"{domain}.enable", session)
    return session


page = tab()


def js(expression, of=page):
    result = command("Runtime.evaluate", of, expression=expression, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in result, result
    return result["result"].get("value")


def wait(what, expression, of=page, seconds=60):
    """Until the expression is true. The element may not exist yet."""
    until, tried = time.time() + seconds, f"(() => {{ try {{ return ({expression}); }} catch (error) {{ return globalThis.last = error, false; }} }})()"
    while not js(tried, of):
        assert time.time() < until, f"{what}: {js('document.body.innerText', of)} {js('String(globalThis.last)', of)} {problems}"
        time.sleep(0.05)


def size(width, height, scale=1):
    command("Emulation.setDeviceMetricsOverride", page, width=width, height=height, deviceScaleFactor=scale, mobile=scale > 1)


def media(**features):
    """`prefers_color_scheme="dark"`, `prefers_contrast="more"`."""
    command("Emulation.setEmulatedMedia", page, features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])


def screenshot(name):
    if folder:
        os.makedirs(folder, exist_ok=True)
        picture = command("Page.captureScreenshot", page, format="png")["data"]
        with open(os.path.join(folder, name + ".png"), "wb") as file:
            file.write(base64.b64decode(picture))


def key(name, code, alt=False, control=False):
    for kind in ("keyDown", "keyUp"):
        text = "\r" if name == "Enter" and kind == "keyDown" else ""
        command("Input.dispatchKeyEvent", page, type=kind, key=name, code=name, windowsVirtualKeyCode=code, text=text, modifiers=alt + 2 * control)


def type_in(element, text):
    """Types into the element with this id, instead of what it has."""
    js(f"(f => {{ f.focus(); f.select(); }})(document.getElementById('{element}'))")
    command("Input.insertText", page, text=text)


def click(selector, of=page):
    js(f"document.querySelector({json.dumps(selector)}).click()", of)


def item(text):
    """Chooses an item of the menu that is open."""
    js(f"[...document.querySelectorAll('.menu button')].find(b => b.textContent.includes({json.dumps(text)})).click()")


def ask(text):
    type_in("text", text)
    key("Enter", 13)


def settings(**fields):
    """Sets samplers of the chat that is shown."""
    for name, value in fields.items():
        js(f"(f => {{ f.value = {json.dumps(value)}; f.dispatchEvent(new Event('input')); }})(document.getElementById('{name}'))")


IDLE = "!document.querySelector('.writing') && document.getElementById('stop').hidden"


def end():
    browser.kill()
    browser.wait()


atexit.register(end)
