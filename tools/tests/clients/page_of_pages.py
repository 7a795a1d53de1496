"""The live view of a server with paged keys and values, in a headless Chromium (browser.py): pages and kernels are counted, and drawn."""
import sys
from browser import command, js, page, problems, screenshot, size, wait

address, = sys.argv[1:]
SHOWN = "document.querySelector('#live-pages b')?.textContent"
CELLS = "[...document.querySelectorAll('#live-pages rect')].map(r => r.className.baseVal).join(', ')"


def cells(own):
    return ", ".join(["cell answers"] * own + ["cell free"] * (6 - own))


size(1300, 850)
command("Page.navigate", page, url=address + "#live")
wait("all are free", SHOWN + " === '0 of 6'")
assert js(CELLS) == cells(0), js(CELLS)
assert js("document.getElementById('live-pages').checkVisibility()")
assert "128 tokens" in js("document.querySelector('#live-pages .legend').textContent")
# Each kernel for this GPU is a cell, whether from the cache or compiled.
kernels = js("fetch('status').then(r => r.json()).then(s => s.kernels.compiled + s.kernels.cached)")
assert kernels > 0 and js("document.querySelector('#live-kernels b').textContent") == str(kernels)
assert js("document.querySelectorAll('#live-kernels rect').length") == kernels
# A text of 150 tokens stays in two pages. A text that differs in the second page has one additional
# page.
for end in ([3, 1, 4], [2, 7, 1]):
    prompt = [(i * i * 7 + i * 37 + 5) % 250 for i in range(150)] + end
    body = '{"prompt": %s, "max_tokens": 4, "ignore_eos": true}' % prompt
    js(f"fetch('v1/completions', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, body: '{body}' }}).then(r => r.json())")
# While the second is answered, the first page is shared.
wait("three are used", f"{SHOWN} === '3 of 6' && {CELLS} === '{cells(3)}'")
screenshot("pages")
assert not problems, problems
print("the page does what it should")
