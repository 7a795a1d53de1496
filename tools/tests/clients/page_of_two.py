"""The page of a server of two models, in a headless Chromium (browser.py): one is chosen, answers, and is chosen again when the page is opened anew."""
import sys
from browser import ask, command, js, page, problems, screenshot, wait

address, first, second = sys.argv[1:]


def answered(number, by):
    wait(f"{number} answers", f"document.querySelectorAll('article.assistant').length === {number} && !document.querySelector('.writing')")
    wait(f"{by} counts it", f"fetch('status?model={by}').then(r => r.json()).then(s => s.requests?.done === 1)")


command("Emulation.setDeviceMetricsOverride", page, width=1300, height=850, deviceScaleFactor=1, mobile=False)
command("Page.navigate", page, url=address)
wait("the first is shown", f"document.getElementById('model')?.textContent.startsWith('{first} on ')")
assert js("[...document.getElementById('which').options].map(o => o.value).join(' ')") == f"{first} {second}"
assert js("!document.getElementById('which').hidden && document.getElementById('which').value") == first
js("for (const [k, v] of [['temperature', 0], ['max_tokens', 8]]) { const f = document.getElementById(k); f.value = v; f.dispatchEvent(new Event('input')); }")
ask("Name a colour.")
answered(1, first)
js(f"(w => {{ w.value = '{second}'; w.dispatchEvent(new Event('change')); }})(document.getElementById('which'))")
wait("the second is not loaded", f"document.getElementById('model').textContent === '{second} is not loaded: it is when you ask it' && !document.getElementById('facts').textContent")
screenshot("not-loaded")
ask("Name another.")
answered(2, second)
wait("the second is shown", f"document.getElementById('model').textContent.startsWith('{second} on ')")
wait("its own counts", "document.getElementById('facts').textContent.includes('1 done')")
screenshot("two-models")
assert js(f"fetch('status?model={first}').then(r => r.json()).then(s => s.requests.done)") == 1
command("Page.reload", page)
wait("the choice is kept", f"document.getElementById('which')?.value === '{second}' && document.getElementById('model').textContent.startsWith('{second} on ')")
assert not problems, problems
print("the page does what it should")
