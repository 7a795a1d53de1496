"""The page in a headless Chromium, driven through its debugging pipe: it chats, stops, shows pictures, keeps its history. KJIT_TEST_BROWSER is the
browser; screenshots go to KJIT_TEST_SCREENSHOTS, if that is set. Needs Python and nothing else."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

address = sys.argv[1]
folder = os.environ.get("KJIT_TEST_SCREENSHOTS")
to_read, to_write = os.pipe()
from_read, from_write = os.pipe()


def pipes():
    # Chromium reads commands at 3 and writes answers at 4. Copies first: the numbers may be among our own.
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
        # What the browser would rather have is no problem.
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


try:
    command("Emulation.setDeviceMetricsOverride", page, width=1300, height=850, deviceScaleFactor=1, mobile=False)
    command("Page.navigate", page, url=address)
    wait("the page is there", "document.readyState === 'complete' && !!document.getElementById('model')")
    wait("it says what is served", "document.getElementById('model').textContent.includes(' on ')")
    js("for (const [k, v] of [['temperature', 0], ['max_tokens', 24]]) { const f = document.getElementById(k); f.value = v; f.dispatchEvent(new Event('input')); }")
    ask("Write **bold** and `code`.")
    wait("an answer, whole", "document.querySelectorAll('article.assistant').length === 1 && !document.querySelector('.writing') && !!document.querySelector('article.assistant .text').textContent")
    first = js("document.querySelector('article.assistant .text').textContent")
    screenshot("answered")
    # Stop, by the keyboard.
    js("(f => { f.value = 900; f.dispatchEvent(new Event('input')); })(document.getElementById('max_tokens'))")
    js("document.getElementById('new').click()")
    ask("Write a story about a dragon and a village, in ten chapters.")
    wait("the answer begins", "(document.querySelector('article.assistant .text')?.textContent.length ?? 0) > 10")
    key("Escape", 27)
    wait("it stops", "!document.querySelector('.writing') && document.getElementById('stop').hidden")
    wait("the server knows", "fetch('status').then(r => r.json()).then(s => s.slots.running === 0 && s.requests.cancelled === 1)")
    # Edit and resend in the chat before: what came after is gone, the text is there to change.
    js("document.querySelectorAll('#chats .open')[1].click()")
    js("document.querySelector('article.user button').click()")
    assert js("document.getElementById('text').value") == "Write **bold** and `code`."
    assert js("document.querySelectorAll('article').length") == 0
    js("(f => { f.value = 24; f.dispatchEvent(new Event('input')); })(document.getElementById('max_tokens'))")
    key("Enter", 13)
    wait("the same answer", f"document.querySelector('article.assistant .text')?.textContent === {json.dumps(first)} && !document.querySelector('.writing')")
    # Pictures of what happened.
    wait("pictures", "document.querySelectorAll('#first-picture rect').length === 17 && !!document.querySelector('#rate-picture polyline') && document.getElementById('facts').textContent.includes('done')")
    screenshot("pictures")
    # What a model writes is text, whatever it looks like.
    safe = js("(() => { const d = document.createElement('div'); d.append(...markdown('<img src=x onerror=alert(1)> [a](javascript:alert(1)) **b** `c`\\n\\n```js\\n1 < 2\\n```\\n- x\\n- y\\n\\n|a|b|\\n|-|-|\\n|1|2|')); return [d.querySelectorAll('img, a').length, d.querySelector('strong').textContent, d.querySelector('pre code').textContent, d.querySelectorAll('li').length, d.querySelectorAll('td').length]; })()")
    assert safe == [0, "b", "1 < 2", 2, 2], safe
    # The history is there again; in the dark, on a phone.
    command("Emulation.setEmulatedMedia", page, features=[{"name": "prefers-color-scheme", "value": "dark"}])
    command("Emulation.setDeviceMetricsOverride", page, width=390, height=780, deviceScaleFactor=2, mobile=True)
    command("Page.reload", page)
    wait("the history", "document.readyState === 'complete' && document.querySelectorAll('#chats .open').length === 2")
    js("document.querySelectorAll('#chats .open')[1].click()")
    wait("the same answer again", f"document.querySelector('article.assistant .text')?.textContent === {json.dumps(first)}")
    assert js("document.documentElement.scrollWidth <= 390"), "it is wider than the phone"
    screenshot("phone")
    js("document.getElementById('show-live').click()")
    assert js("getComputedStyle(document.getElementById('live')).display") == "block"
    screenshot("phone-live")
    assert not problems, problems
    print("the page does what it should")
finally:
    browser.kill()
    browser.wait()
