"""The page of a server of two models that wants a key, in a headless Chromium (browser.py): one is chosen, answers, is loaded and unloaded, and is chosen again when the chat is
opened anew."""
import sys
from browser import IDLE, ask, click, command, item, js, page, problems, screenshot, settings, size, type_in, wait

address, first, second, key = sys.argv[1:]
NAME = "document.querySelector('#model .name')?.textContent"


def state(name, is_):
    wait(f"{name} is {is_}", f"import('./page/ask.js').then(a => a.get('status')).then(s => s.models.find(m => m.name === '{name}').state === '{is_}')")


def answered(number, by):
    wait(f"{number} answers", f"document.querySelectorAll('article.assistant').length === {number} && {IDLE}")
    wait(f"{by} counts it", f"import('./page/ask.js').then(a => a.get('status?model={by}')).then(s => s.requests?.done === 1)")


size(1300, 850)
command("Page.navigate", page, url=address)
wait("it wants a key", "document.getElementById('ask-note')?.textContent.includes('General')")
click("#general")
item("General")
type_in("key", key)
click("dialog button")
wait("the first is shown", f"{NAME} === '{first}' && document.querySelector('#model .dot').classList.contains('ready')")
settings(temperature=0, max_tokens=8)
ask("Name a colour.")
answered(1, first)
click("#model")
assert js("[...document.querySelectorAll('.menu [role=menuitemradio]')].map(b => b.querySelector('b').textContent + ' ' + b.ariaChecked).join(' ')") == f"{first} true {second} false"
screenshot("models")
item(second)
wait("the second is chosen, and not loaded", f"{NAME} === '{second}' && document.querySelector('#model .dot').classList.contains('unloaded')")
ask("Name another.")
answered(2, second)
wait("it is loaded", "document.querySelector('#model .dot').classList.contains('ready')")
assert js(f"import('./page/ask.js').then(a => a.get('status?model={first}')).then(s => s.requests.done)") == 1
command("Page.reload", page)
wait("the choice is kept", f"{NAME} === '{second}' && document.querySelector('#model .dot').classList.contains('ready')")
# The menu unloads and loads the model.
click("#model")
wait("its items", "!!document.querySelector('.menu .move')")
item("Unload")
state(first, "unloaded")
wait("the page knows", f"import('./page/status.js').then(s => s.status.modelState('{first}') === 'unloaded')")
click("#model")
item("Load now")
click("#model")
state(first, "ready")
wait("the open menu says so", "[...document.querySelectorAll('.menu .model')].every(b => b.textContent.includes('ready'))")
# Each chat has its own model. A new chat starts with the current one.
click("#new")
assert js(NAME) == second, "a new chat goes on with the model"
# The refusals without a key are the only errors in the browser.
problems = [p for p in problems if '401' not in p.get('entry', {}).get('text', '')]
assert not problems, problems
print("the page does what it should")
