"""The page in a headless Chromium (browser.py): it chats, stops, shows pictures, keeps its history."""
import json
import sys
from browser import ask, command, js, key, page, problems, screenshot, wait

command("Emulation.setDeviceMetricsOverride", page, width=1300, height=850, deviceScaleFactor=1, mobile=False)
command("Page.navigate", page, url=sys.argv[1])
wait("the page is there", "document.readyState === 'complete' && !!document.getElementById('model')")
wait("it says what is served", "document.getElementById('model').textContent.includes(' on ')")
js("for (const [k, v] of [['temperature', 0], ['max_tokens', 24]]) { const f = document.getElementById(k); f.value = v; f.dispatchEvent(new Event('input')); }")
ask("Write **bold** and `code`.")
wait("an answer, whole", "document.querySelectorAll('article.assistant').length === 1 && !document.querySelector('.writing') && !!document.querySelector('article.assistant .text').textContent")
first = js("document.querySelector('article.assistant .text').textContent")
screenshot("answered")
# Stop an answer by the keyboard.
js("(f => { f.value = 900; f.dispatchEvent(new Event('input')); })(document.getElementById('max_tokens'))")
js("document.getElementById('new').click()")
ask("Write a story about a dragon and a village, in ten chapters.")
wait("the answer begins", "(document.querySelector('article.assistant .text')?.textContent.length ?? 0) > 10")
key("Escape", 27)
wait("it stops", "!document.querySelector('.writing') && document.getElementById('stop').hidden")
wait("the server knows", "fetch('status').then(r => r.json()).then(s => s.slots.running === 0 && s.requests.cancelled === 1)")
# Edit and resend a message of the previous chat: later messages are removed, and the text can be
# changed.
js("document.querySelectorAll('#chats .open')[1].click()")
js("document.querySelector('article.user button').click()")
assert js("document.getElementById('text').value") == "Write **bold** and `code`."
assert js("document.querySelectorAll('article').length") == 0
js("(f => { f.value = 24; f.dispatchEvent(new Event('input')); })(document.getElementById('max_tokens'))")
key("Enter", 13)
wait("the same answer", f"document.querySelector('article.assistant .text')?.textContent === {json.dumps(first)} && !document.querySelector('.writing')")
# Charts of the measurements.
wait("pictures", "document.querySelectorAll('#first-picture rect').length === 17 && !!document.querySelector('#rate-picture polyline') && document.getElementById('facts').textContent.includes('done')")
screenshot("pictures")
# HTML in an answer is shown as text.
safe = js("(() => { const d = document.createElement('div'); d.append(...markdown('<img src=x onerror=alert(1)> [a](javascript:alert(1)) **b** `c`\\n\\n```js\\n1 < 2\\n```\\n- x\\n- y\\n\\n|a|b|\\n|-|-|\\n|1|2|')); return [d.querySelectorAll('img, a').length, d.querySelector('strong').textContent, d.querySelector('pre code').textContent, d.querySelectorAll('li').length, d.querySelectorAll('td').length]; })()")
assert safe == [0, "b", "1 < 2", 2, 2], safe
# The history is shown again, in dark mode, on a phone.
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
