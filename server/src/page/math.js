// Formulas: $…$ and \(…\) in a line, $$…$$ and \[…\] as blocks. KaTeX draws them, when the first
// one comes.

import { el } from "./dom.js";

/** A longer formula is shown as its source. */
const MOST = 5000;

let loading = null;
const load = () =>
  (loading ??= (async () => {
    const sheet = el("link", {
      rel: "stylesheet",
      href: new URL("vendor/katex.css", import.meta.url).href,
    });
    document.head.append(sheet);
    await import("./vendor/katex.js");
    return globalThis.katex;
  })());

export function mathElement(source, block) {
  const element = el("span", { class: block ? "math block" : "math", text: source });
  element.source = source;
  // Drawn formulas are replaced only if their source changes.
  element.grow = (fresh) => fresh.source === source && fresh.className === element.className;
  if (source.length <= MOST) draw(element, source, block);
  return element;
}

async function draw(element, source, block) {
  try {
    const katex = await load();
    const options = {
      displayMode: block,
      throwOnError: true,
      trust: false,
      maxSize: 20,
      maxExpand: 200,
      strict: "ignore",
    };
    const inside = el("span");
    katex.render(source, inside, options);
    element.replaceChildren(inside);
  } catch {
    // It is no formula, or one that KaTeX does not know: its source stays.
    element.classList.add("raw");
  }
}

/** Adds the rules to markdown-it. */
export function math(reader) {
  reader.inline.ruler.before("escape", "math", inline);
  reader.block.ruler.before("fence", "math", block, {
    alt: ["paragraph", "reference", "blockquote", "list"],
  });
}

const PAIRS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];

function inline(state, silent) {
  const pair = PAIRS.find(([open]) => state.src.startsWith(open, state.pos));
  if (!pair) return false;
  const [open, close, asBlock] = pair,
    from = state.pos + open.length;
  const end = closing(state, from, close);
  if (end < 0) return false;
  const content = state.src.slice(from, end);
  if (!content.trim()) return false;
  if (open === "$") {
    // Amounts of money are no formulas: "$5 and $6".
    if (/^\s|\s$|\\$/.test(content) || /\d/.test(state.src[end + 1] ?? "")) return false;
  }
  if (!silent) {
    const token = state.push("math", "", 0);
    token.content = content.trim();
    token.markup = asBlock ? "block" : "";
  }
  state.pos = end + close.length;
  return true;
}

/** The place of the closing mark. What was not found once is not sought again in this text. */
function closing(state, from, close) {
  const none = (state.env.none ??= new Map());
  if (none.get(close) === state.src) return -1;
  const limit = Math.min(state.posMax, from + MOST);
  for (let at = state.src.indexOf(close, from); ; at = state.src.indexOf(close, at + 1)) {
    if (at < 0) none.set(close, state.src);
    if (at < 0 || at >= limit) return -1;
    if (close[0] !== "$" || state.src[at - 1] !== "\\") return at;
  }
}

function block(state, startLine, endLine, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]);
  const first = line(startLine);
  const pair = [
    ["$$", "$$"],
    ["\\[", "\\]"],
  ].find(([open]) => first.startsWith(open));
  if (!pair) return false;
  const [open, close] = pair,
    rest = first.slice(open.length);
  const lines = [];
  let next = startLine;
  for (let text = rest; ;) {
    const end = text.indexOf(close);
    if (end >= 0) {
      // Text behind the formula makes it part of a paragraph.
      if (text.slice(end + close.length).trim()) return false;
      lines.push(text.slice(0, end));
      break;
    }
    lines.push(text);
    next += 1;
    if (next >= endLine || next - startLine > 200 || state.sCount[next] < state.blkIndent)
      return false;
    text = line(next);
  }
  const content = lines.join("\n").trim();
  if (!content || content.length > MOST) return false;
  if (silent) return true;
  const token = state.push("math_block", "", 0);
  token.map = [startLine, next + 1];
  token.content = content;
  state.line = next + 1;
  return true;
}
