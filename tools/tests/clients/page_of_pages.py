"""The page of a server whose keys and values lie in pages, in a headless Chromium (browser.py): how many are in use is shown, and drawn."""
import sys
from browser import command, js, page, problems, screenshot, wait

address, = sys.argv[1:]
SHOWN = "document.getElementById('pages')?.textContent"
WIDE = "[...document.querySelectorAll('#pages-picture rect')].map(r => r.className.baseVal + ' ' + r.getAttribute('width')).join(', ')"

command("Emulation.setDeviceMetricsOverride", page, width=1300, height=850, deviceScaleFactor=1, mobile=False)
command("Page.navigate", page, url=address)
wait("all are free", SHOWN + " === '0 of 6, 0'")
assert js(WIDE) == "room 100, shared 0, bar 0", js(WIDE)
assert js("document.getElementById('pages-figure').checkVisibility()")
# A text of 150 tokens stays in two pages. A text that differs in the second page has one more
# page of its own.
for end in ([3, 1, 4], [2, 7, 1]):
    prompt = [(i * i * 7 + i * 37 + 5) % 250 for i in range(150)] + end
    body = '{"prompt": %s, "max_tokens": 4, "ignore_eos": true}' % prompt
    js(f"fetch('v1/completions', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, body: '{body}' }}).then(r => r.json())")
wait("three are used", SHOWN + " === '3 of 6, 0'")
assert js(WIDE) == "room 100, shared 0, bar 50", js(WIDE)
screenshot("pages")
assert not problems, problems
print("the page does what it should")
