"""The page in a headless Chromium (browser.py): chats, branches, files, export, tabs, languages, the live view.

    page.py URL [AXE]     AXE: a file with axe-core, for a check of accessibility
"""
import json
import sys
import time
from browser import IDLE, ask, click, command, item, js, key, media, page, problems, screenshot, settings, size, tab, type_in, wait

address = sys.argv[1]
ANSWER = "[...document.querySelectorAll('article.assistant')].at(-1)?.querySelector(':scope > .text').textContent ?? ''"
OTHER = "document.querySelectorAll('#chats li')"


def loaded(of=page):
    wait("the page is there", "document.body?.dataset.ready === 'true'", of)


def answered(number):
    wait(f"answer {number}, whole", f"document.querySelectorAll('article.assistant').length === {number} && {IDLE} && !!({ANSWER})")


def in_menu(chat, text):
    """Chooses an item of the menu of the chat at this place."""
    js(f"{OTHER}[{chat}].querySelector('.icon').click()")
    item(text)


def begins():
    size(1300, 850)
    command("Page.navigate", page, url=address)
    loaded()
    wait("it says what is served", "document.querySelector('.runs').textContent.includes('tokens')")
    assert js("document.querySelectorAll('.cards button').length") >= 3
    assert js("document.getElementById('model').textContent") != ""
    screenshot("empty")


def answers_and_continues():
    settings(temperature=0, max_tokens=16)
    ask("Write **bold** and `code`.")
    answered(1)
    first = js(ANSWER)
    # The answer reached its limit, shows that, and continues from there.
    assert "limit" in js("document.querySelector('.note').textContent")
    assert "tokens/s" in js("document.querySelector('.figures').textContent")
    assert js("document.getElementById('context-text').textContent").endswith("8,192") or js("!document.getElementById('context').hidden")
    before = js("document.querySelectorAll('article').length")
    settings(max_tokens=8)
    click(".continue")
    wait("it is longer", f"{IDLE} && ({ANSWER}).length > {len(first)}")
    assert js(ANSWER).startswith(first.rstrip()[:40]) and js("document.querySelectorAll('article').length") == before
    screenshot("continued")
    return first


def branches(first):
    """Edited questions and other answers do not replace the old ones."""
    settings(max_tokens=8)
    click("article.user .edit")
    wait("the editor", "document.activeElement.matches('.editor textarea')")
    js("document.activeElement.select()")
    command("Input.insertText", page, text="Name a colour.")
    key("Enter", 13)
    place = "document.querySelector('article.user .place').textContent"
    wait("another question", f"{place} === '2/2'")
    answered(1)
    assert js("document.querySelector('article.user .text').textContent") == "Name a colour."
    click("article.user .branches button")
    wait("the first question", f"{place} === '1/2'")
    assert js("document.querySelector('article.user .text').textContent") == "Write **bold** and `code`."
    assert js(ANSWER).startswith(first.rstrip()[:40])
    click("article.assistant .actions button[aria-haspopup]")
    item("1.4")
    wait("a second answer", f"document.querySelector('article.assistant .place').textContent === '2/2' && {IDLE}")
    assert "1.4" in js("document.querySelector('article.assistant .figures').textContent")
    key("ArrowLeft", 37, alt=True)
    wait("the first answer", "document.querySelector('article.assistant .place').textContent === '1/2'")
    screenshot("branches")
    # A chosen branch stays chosen if another chat is opened immediately.
    js("document.querySelector('article.assistant .branches button:last-child').click(); document.getElementById('new').click()")
    wait("a new chat", "!!document.querySelector('.welcome')")
    time.sleep(0.2)
    js(f"{OTHER}[0].querySelector('.open').click()")
    wait("the second answer", "document.querySelector('article.assistant .place').textContent === '2/2'")
    click("article.assistant .branches button")
    wait("the first answer", "document.querySelector('article.assistant .place').textContent === '1/2'")


def goes_on_and_stops():
    """A selection stays while an answer grows; another chat does not stop it; Escape does."""
    click("#new")
    settings(temperature=0, max_tokens=400)
    ask("Write a story about a dragon and a village, in ten chapters.")
    wait("the answer begins", f"({ANSWER}).length > 30")
    js("getSelection().selectAllChildren(document.querySelector('article.assistant > .text').firstElementChild)")
    marked = js("getSelection().toString()")
    wait("it grows", f"({ANSWER}).length > {len(marked) + 60}")
    assert js("getSelection().toString()").startswith(marked) and marked
    js(f"{OTHER}[1].querySelector('.open').click()")
    wait("the other chat", "document.querySelector('article.user .text').textContent.startsWith('Write **bold**')")
    assert js("document.querySelectorAll('#chats .busy').length") == 1
    js(f"{OTHER}[0].querySelector('.open').click()")
    wait("it still grows", "!!document.querySelector('article.writing')")
    length = len(js(ANSWER))
    wait("longer", f"({ANSWER}).length > {length}")
    key("Escape", 27)
    wait("it stops", IDLE)
    assert "Stopped" in js("document.querySelector('.note').textContent")
    wait("the server knows", "fetch('status').then(r => r.json()).then(s => s.slots.running === 0 && s.requests.cancelled === 1)")


def survives_a_reload():
    """A page that is closed during an answer stores the partial answer, shows that it is partial, and can continue it."""
    click(".continue")
    length = len(js(ANSWER))
    wait("it goes on", f"({ANSWER}).length > {length + 80} && !!document.querySelector('article.writing')")
    time.sleep(0.8)
    command("Page.reload", page)
    loaded()
    wait("it is marked", "document.querySelector('.note')?.textContent.includes('Interrupted')")
    assert len(js(ANSWER)) > length and js("!!document.querySelector('.continue')")


def two_tabs():
    """One tab answers, the other sees it; neither overwrites the other."""
    here = js("location.href")
    other = tab(here)
    loaded(other)
    click(".continue")
    wait("the other sees it", "!document.getElementById('stop').hidden && !document.getElementById('ask-note').hidden", other)
    length = js(f"({ANSWER}).length", other)
    wait("it grows there", f"({ANSWER}).length > {length}", other)
    click("#stop", other)
    wait("stopped from there", IDLE)
    wait("told", "document.getElementById('ask-note').hidden", other)
    # The first button renames, the second pins: both must work.
    js(f"{OTHER}[0].querySelector('.icon').click()")
    item("Rename")
    command("Input.insertText", page, text="The dragon")
    key("Enter", 13)
    wait("renamed there", f"{OTHER}[0].textContent.includes('The dragon')", other)
    js(f"{OTHER}[0].querySelector('.icon').click()", other)
    js("[...document.querySelectorAll('.menu button')].find(b => b.textContent === 'Pin').click()", other)
    wait("pinned here", "document.querySelector('#chats h2').textContent === 'Pinned'")
    assert js(f"{OTHER}[0].textContent") == "The dragon"
    command("Page.close", other)


def keeps_order():
    """Folders, search, deletion with undo."""
    in_menu(1, "folder")
    command("Input.insertText", page, text="Tests")
    key("Enter", 13)
    wait("a folder", "document.querySelector('#chats summary')?.textContent === 'Tests'")
    type_in("search", "dragon and a village")
    wait("found", "document.querySelector('#chats mark')?.textContent.toLowerCase() === 'dragon and a village'")
    screenshot("search")
    click("#chats .open")
    wait("marked", "document.querySelector('article.found')?.textContent.includes('dragon')")
    js("(f => { f.value = ''; f.dispatchEvent(new Event('input')); })(document.getElementById('search'))")
    wait("all again", f"{OTHER}.length === 2 && !document.querySelector('#chats mark')")
    in_menu(0, "Delete")
    wait("deleted", f"{OTHER}.length === 1 && document.getElementById('toasts').textContent.includes('The dragon')")
    click(".toast button")
    wait("undone", f"{OTHER}.length === 2 && document.querySelectorAll('article').length === 2")


def exports():
    """An imported export equals the original; files of other programs are refused."""
    told = js("""(async () => {
      const x = await import('./page/exchange.js'), s = await import('./page/store.js'), tree = await import('./page/tree.js');
      const chat = (await s.allChats()).find(c => c.folder === 'Tests'), messages = await s.messagesOf(chat.id);
      const [back] = x.chatsOf('a.json', x.asJson([{ chat, messages }]));
      const shape = (c, all) => tree.path(new Map(all.map(m => [m.id, m])), c.head).map(m => [m.role, m.content]);
      const branch = tree.path(new Map(messages.map(m => [m.id, m])), chat.head);
      const [text] = x.chatsOf('a.md', x.asMarkdown(chat, branch));
      const same = JSON.stringify(shape(back.chat, back.messages)) === JSON.stringify(shape(chat, messages));
      const trimmed = (all) => JSON.stringify(all.map(([r, c]) => [r, c.trim()]));
      const sameText = trimmed(shape(text.chat, text.messages)) === trimmed(shape(chat, messages));
      const wrong = ['', '{', '{}', 'text', '[]', '{"form": "kjit chats", "version": 2, "chats": []}',
        '{"form": "kjit chats", "version": 1, "chats": [{}]}',
        '{"form": "kjit chats", "version": 1, "chats": [{"chat": {"title": "a"}, "messages": [{"id": "1", "role": "user", "content": 5}]}]}'];
      const refused = wrong.filter(w => { try { x.chatsOf('b', w); return false; } catch (e) { return e.message.includes('b') && e.constructor === Error; } });
      await x.importFiles([new File([x.asJson([{ chat, messages }])], 'c.json')]);
      return [same, sameText, back.messages.length === messages.length, back.chat.id !== chat.id, back.chat.folder, refused.length === wrong.length];
    })()""")
    assert told == [True, True, True, True, "Tests", True], told
    wait("imported", f"{OTHER}.length === 3")
    assert js("import('./page/state.js').then(({ state }) => state.chats.includes(state.chat))"), "the chat that is shown is still the list's"
    in_menu(2, "Delete")


def takes_files():
    click("#new")
    settings(temperature=0, max_tokens=4)
    drop = """(files => { const d = new DataTransfer(); files.forEach(f => d.items.add(f));
      for (const kind of ['dragenter', 'drop']) window.dispatchEvent(new DragEvent(kind, { dataTransfer: d, bubbles: true, cancelable: true })); })"""
    js(drop + "([new File(['colour = \"blue\"\\n```\\nfence'], 'a.py', { type: 'text/x-python' })])")
    wait("it is attached", "document.querySelector('.chip')?.textContent.includes('a.py')")
    for name, kind, content, says in [("a.pdf", "application/pdf", "%PDF", "PDF"), ("a.png", "image/png", "x", "picture"), ("a.bin", "", "\\0a", "no text"),
                                      ("b.txt", "text/plain", None, "larger")]:
        content = f"'{content}'" if content else "'x'.repeat(5 << 20)"
        js(f"{drop}([new File([{content}], '{name}', {{ type: '{kind}' }})])")
        wait(f"{name} is refused", f"document.getElementById('toasts').textContent.includes({json.dumps(says)})")
    assert js("document.querySelectorAll('.chip').length") == 1
    screenshot("attached")
    ask("What is in the file?")
    answered(1)
    assert js("document.querySelector('article.user .file summary').textContent") == "a.py"
    sent = js("import('./page/files.js').then(f => f.withFiles('x', [{ name: 'a', text: '```' }]))")
    assert sent == "a:\n````\n```\n````\n\nx", sent
    # A model that reads pictures gets them as parts before the text.
    parts = js("""import('./page/files.js').then(async f => {
      const read = await f.readFile(new File(['x'], 'a.png', { type: 'image/png' }), true);
      const refused = await f.readFile(new File(['x'], 'a.gif', { type: 'image/gif' }), true).catch(e => e.message);
      return [f.contentOf('y', [read, { name: 'b', text: 'z' }]), f.contentOf('', [read]).length, f.contentOf('y', []), refused];
    })""")
    assert parts[0] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}},
                        {"type": "text", "text": "b:\n```\nz\n```\n\ny"}], parts
    assert parts[1:3] == [1, "y"] and "WebP" in parts[3], parts


def reads_markdown():
    """Forms that models write, and texts that would break a page."""
    told = js("""(async () => {
      const { markdown } = await import('./page/markdown.js');
      const show = text => { const d = document.createElement('div'); d.append(...markdown(text)); return d; };
      const count = (text, what) => show(text).querySelectorAll(what).length;
      const all = [
        ['tags are text', count('<img src=x onerror=alert(1)> <b>x</b> <script>1</script>', 'img, b, script') === 0],
        ['links', count('[a](javascript:alert(1)) [b](data:text/html,x) [c](ftp://x) [d](vbscript:x)', 'a') === 0],
        ['good links', [...show('[a](https://a.example) <mailto:b@c.example> http://d.example').querySelectorAll('a')].every(a => a.rel === 'noopener noreferrer' && a.target === '_blank')],
        ['bare link', count('see https://a.example/b?c=d. Fine', 'a') === 1 && count('run main.py', 'a') === 0],
        ['no pictures', count('![x](https://a.example/b.png)', 'img') === 0 && count('![x](https://a.example/b.png)', 'a') === 1],
        ['bold', count('__bold__ **also** *em* ~~s~~', 'strong') === 2],
        ['lists', count('- a\\n- b\\n\\n1. c\\n2. d\\n   - e', 'ul, ol') === 3],
        ['start', show('3. c\\n4. d').querySelector('ol').start === 3],
        ['tasks', count('- [ ] a\\n- [x] b', 'input[type=checkbox]') === 2 && count('- [x] b', 'input:checked') === 1],
        ['table', count('|a|b|\\n|-|-:|\\n|`x|y`|2|\\n|1<br>2|3|', 'td') === 6 || count('|a|b|\\n|-|-:|\\n|`x\\\\|y`|2|\\n|1<br>2|3|', 'td') === 4],
        ['break in a table', count('|a|\\n|-|\\n|1<br>2|', 'td br') === 1],
        ['fence', show('```js\\n1 < 2\\n```').querySelector('pre code').textContent === '1 < 2'],
        ['language', show('```js\\n1\\n```').querySelector('.language').textContent === 'JavaScript'],
        ['unclosed', show('a\\n```py\\nx = 1').querySelector('pre code').textContent === 'x = 1'],
        ['mermaid', show('```mermaid\\ngraph TD\\n```').querySelector('.language').textContent === 'Mermaid'],
        ['maths', count('$a^2$ and \\\\(b\\\\)\\n\\n$$\\nc\\n$$\\n\\n\\\\[d\\\\]', '.math') === 4 && count('$$x$$', '.math.block') === 1],
        ['money', count('It costs $5 and $6.', '.math') === 0],
      ];
      return all.filter(([, good]) => !good).map(([name]) => name);
    })()""")
    assert told == [], told
    slow = js("""(async () => {
      const { markdown } = await import('./page/markdown.js');
      const n = 20000, texts = { quotes: '>'.repeat(3400) + ' x', marks: '*a '.repeat(n), open: '['.repeat(n), links: '[a]('.repeat(n), ticks: '`a '.repeat(n),
        lists: Array.from({ length: 400 }, (_, i) => ' '.repeat(i * 2) + '- a').join('\\n'), table: '|a'.repeat(200) + '|\\n' + '|-'.repeat(200) + '|\\n' + ('|x'.repeat(200) + '|\\n').repeat(500),
        money: '$'.repeat(n), dollars: '$a '.repeat(n), blocks: '$$\\n'.repeat(n), formula: '$$' + '{'.repeat(4000) + '}'.repeat(4000) + '$$', brackets: '\\\\('.repeat(n),
        html: '<a '.repeat(n), stars: '*'.repeat(n) + 'a' + '*'.repeat(n), entity: '&'.repeat(n), lines: 'a\\n'.repeat(n), fences: '```\\n'.repeat(n), long: 'x'.repeat(2000000), nul: 'a\\0b\\ud800c' };
      const slow = [];
      for (const [name, text] of Object.entries(texts)) {
        const begun = performance.now(), d = document.createElement('div');
        d.append(...markdown(text));
        const took = performance.now() - begun;
        if (took > 3000 || !d.textContent) slow.push(name + ' ' + Math.round(took));
      }
      return slow;
    })()""")
    assert slow == [], slow


def opens_whatever_it_kept():
    """Hostile answers, thoughts, chats of the page's earlier version: also when the page is opened again."""
    js("""(async () => {
      const x = await import('./page/exchange.js');
      const said = ['>'.repeat(3400) + ' the end', '<script>alert(1)</script> <style>* { display: none }</style>', '[x](javascript:alert(1))', '|a'.repeat(3000), '```\\n'.repeat(999)];
      const messages = said.flatMap((content, n) => [
        { id: `q${n}`, parent: n ? `a${n - 1}` : null, role: 'user', content: `<b>${n}</b>` },
        { id: `a${n}`, parent: `q${n}`, role: 'assistant', content, reasoning: 'I **think**.', state: 'done' }]);
      await x.importFiles([new File([x.asJson([{ chat: { title: '<i>Hostile</i>', head: 'a4' }, messages }])], 'h.json')]);
      localStorage.setItem('kjit.chats', JSON.stringify([{ id: 'old1', turns: [{ role: 'user', content: 'An old question' }, { role: 'assistant', content: 'An old answer' }] }]));
    })()""")
    wait("it is listed", f"[...{OTHER}].some(c => c.textContent.includes('<i>Hostile</i>'))")
    js(f"[...{OTHER}].find(c => c.textContent.includes('Hostile')).querySelector('.open').click()")
    for _ in range(2):
        wait("it is shown", "document.querySelectorAll('article.assistant').length === 5 && document.querySelector('article.assistant > .text').textContent.includes('the end')")
        assert js("document.querySelectorAll('article script, article style, article b').length") == 0
        assert js("document.querySelector('details.reasoning strong').textContent") == "think"
        assert js("!document.querySelector('details.reasoning').open")
        command("Page.reload", page)
        loaded()
    js(f"[...{OTHER}].find(c => c.textContent.includes('An old question')).querySelector('.open').click()")
    wait("the old chat", f"({ANSWER}) === 'An old answer'")
    assert js("localStorage.getItem('kjit.chats')") is None
    for name in ("Hostile", "An old question"):
        js(f"[...{OTHER}].find(c => c.textContent.includes('{name}')).querySelector('.icon').click()")
        item("Delete")
    wait("both are gone", f"{OTHER}.length === 3")


def draws_code_and_formulas():
    js(f"[...{OTHER}].find(c => c.textContent.includes('in the file')).querySelector('.open').click()")
    wait("its answer", "document.querySelector('article.user')?.textContent.includes('in the file')")
    js("""(async () => {
      const { markdown } = await import('./page/markdown.js');
      const text = "## Forms\\n\\nThe mass is $m = \\\\frac{E}{c^2}$, and\\n\\n$$\\\\int_0^1 x^2\\\\,dx = \\\\tfrac13$$\\n\\n```rust\\nfn main() { println!(\\"hi {}\\", 1); }\\n```\\n\\n| a | b |\\n|---|--:|\\n| one | 1 |\\n\\n- [x] done\\n- [ ] open\\n\\n> quoted `code`\\n\\nSee https://example.org.";
      document.querySelector('article.assistant > .text').replaceChildren(...markdown(text));
    })()""")
    wait("formulas", "document.querySelectorAll('article.assistant .katex').length === 2")
    wait("colours", "document.querySelectorAll('article.assistant .hljs-keyword').length >= 1")
    wait("fonts", "document.fonts.ready.then(() => [...document.fonts].some(f => f.family.startsWith('KaTeX') && f.status === 'loaded'))")
    screenshot("forms")


def settings_and_presets():
    click("#settings")
    assert not js("document.getElementById('sampling').open"), "samplers are hidden until asked for"
    type_in("system", "Answer in one word.")
    type_in("preset-name", "Short")
    js("[...document.querySelectorAll('#drawer button')].find(b => b.textContent === 'Keep').click()")
    wait("the preset", "[...document.querySelectorAll('#presets option')].some(o => o.textContent === 'Short')")
    screenshot("settings")
    # Typed text is kept, also if another chat is opened immediately.
    type_in("system", "Answer in two words.")
    click("#new")
    assert js("document.getElementById('system').value") == "", "a chat's settings are its own"
    wait("it is kept", "import('./page/store.js').then(s => s.allChats()).then(all => all.some(c => c.settings.system === 'Answer in two words.'))")
    js("(s => { s.value = '0'; s.dispatchEvent(new Event('change')); })(document.getElementById('presets'))")
    assert js("document.getElementById('system').value") == "Answer in one word."
    click("#settings")


def says_when_nothing_is_kept():
    js("globalThis.put = IDBObjectStore.prototype.put; IDBObjectStore.prototype.put = function () { throw new DOMException('full', 'QuotaExceededError'); }")
    click("#new")
    settings(max_tokens=2)
    ask("Hi")
    answered(1)
    wait("it says so", "document.getElementById('toasts').textContent.includes('did not keep')")
    js("IDBObjectStore.prototype.put = globalThis.put")


def languages():
    told = js("""(async () => {
      const en = (await import('./page/words/en.js')).default, wrong = [];
      const marks = s => [...JSON.stringify(s).matchAll(/\\{\\w+\\}/g)].map(m => m[0]).sort().join();
      const names = Object.keys((await import('./page/words.js')).LANGUAGES).filter(name => name !== 'en');
      for (const name of names) {
        const words = (await import(`./page/words/${name}.js`)).default;
        for (const key of new Set([...Object.keys(en), ...Object.keys(words)])) {
          if (!(key in words) || !(key in en) || marks(en[key]) !== marks(words[key])) wrong.push(name + ' ' + key);
        }
      }
      return names.length < 5 ? names : wrong;
    })()""")
    assert told == [], told
    js("localStorage.setItem('kjit.language', 'de')")
    command("Page.reload", page)
    loaded()
    assert js("[document.documentElement.lang, document.getElementById('new').textContent]") == ["de", "Neuer Chat"]
    screenshot("german")
    js("localStorage.removeItem('kjit.language')")
    command("Page.reload", page)
    loaded()


def looks():
    """No width is too narrow; dark, light and contrast are legible."""
    axe = open(sys.argv[2]).read() if len(sys.argv) > 2 else None

    def legible(what):
        if not axe:
            return
        time.sleep(0.3)  # Colours change within a tenth of a second.
        js(axe + ";0")
        found = js("axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + ' ' + n.failureSummary.slice(0, 200))]))")
        assert found == [], (what, found)

    js(f"{OTHER}[1].querySelector('.open').click()")
    wait("a chat", "document.querySelectorAll('article').length >= 2")
    time.sleep(0.3)
    legible("light")
    media(prefers_color_scheme="dark")
    legible("dark")
    screenshot("dark")
    media(prefers_color_scheme="light", prefers_contrast="more")
    legible("contrast")
    media(prefers_color_scheme="dark")
    for width in (360, 1600):
        size(width, 780, 2 if width == 360 else 1)
        time.sleep(0.3)
        assert js(f"document.documentElement.scrollWidth <= {width}"), f"it is wider than {width}"
        screenshot(f"chat-{width}")
    media(prefers_color_scheme="light")
    size(1300, 850)
    click("#settings")
    js("document.getElementById('sampling').open = true")
    legible("settings")
    click("#settings")
    js(f"{OTHER}[0].querySelector('.icon').click()")
    legible("a menu")
    key("Escape", 27)
    media(prefers_color_scheme="dark")
    size(360, 780, 2)
    click("#show-sidebar")
    wait("the list", "getComputedStyle(document.getElementById('sidebar')).visibility === 'visible'")
    time.sleep(0.3)
    screenshot("list-360")
    key("Escape", 27)
    wait("the list is gone", "getComputedStyle(document.getElementById('sidebar')).visibility === 'hidden'")
    size(1300, 850)
    media(prefers_color_scheme="light")
    key("/", 191, control=True)
    wait("the keys", "document.querySelectorAll('dialog kbd').length > 10")
    legible("keys")
    screenshot("keys")
    click("dialog button")
    return legible


def live(legible):
    click("#live")
    wait("pictures", "document.querySelectorAll('#live-first rect').length === 17 && !!document.querySelector('#live-rate polyline')")
    wait("facts", "document.getElementById('live-facts').textContent.includes('cancelled')")
    axes = js("[...document.querySelectorAll('#live-rate .tick')].map(t => t.textContent)")
    assert "−120 s" in axes and "0 s" in axes and "0" in axes, axes
    assert "tokens/s" in js("document.querySelector('#live-rate b').textContent")
    assert js("document.querySelectorAll('#live-streams rect').length") >= 1
    assert js("document.querySelector('#live-memory .tick.end').textContent").endswith("GB")
    assert js("[...document.querySelectorAll('#live-view svg')].filter(s => s.getAttribute('role') && !s.getAttribute('aria-label')).length") == 0
    legible("live")
    screenshot("live")
    media(prefers_color_scheme="dark")
    size(360, 780, 2)
    time.sleep(1.2)
    assert js("document.documentElement.scrollWidth <= 360"), "it is wider than the phone"
    screenshot("live-360")
    click("#live")
    wait("the chat again", "document.getElementById('live-view').hidden")


begins()
branches(answers_and_continues())
goes_on_and_stops()
survives_a_reload()
two_tabs()
keeps_order()
exports()
takes_files()
reads_markdown()
opens_whatever_it_kept()
draws_code_and_formulas()
settings_and_presets()
languages()
live(looks())
says_when_nothing_is_kept()
assert not problems, problems
print("the page does what it should")
