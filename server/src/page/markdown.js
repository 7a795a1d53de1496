// Markdown to elements. markdown-it reads the text; its tokens become elements here, so that no
// HTML is ever parsed. Tags in an answer are text, links go to http, https and mailto only, and
// nothing is loaded from elsewhere.

import MarkdownIt from "./vendor/markdown-it.js";
import { codeBlock } from "./code.js";
import { el } from "./dom.js";
import { math, mathElement } from "./math.js";
import { t } from "./words.js";

/** An answer with more tokens than this is shown as plain text: no reader needs its tables. */
const MOST_TOKENS = 40_000;
const MOST_CHARACTERS = 1_000_000;
/** A block that is nested deeper is shown as plain text: markdown-it leaves its text out. */
const DEEPEST = 40;

const reader = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
reader.validateLink = (address) => /^(https?:|mailto:)/i.test(address.trim());
reader.inline.ruler.before("html_inline", "br", lineBreak);
math(reader);

/** Models write `<br>` inside of tables. */
function lineBreak(state, silent) {
  const found = /^<br\s*\/?>/i.exec(state.src.slice(state.pos, state.pos + 8));
  if (!found) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos += found[0].length;
  return true;
}

/**
 * The blocks of a text: `{ source, make() }`. A block whose source did not change needs not be
 * made again while an answer grows.
 */
export function blocks(text) {
  let tokens = null;
  if (text.length <= MOST_CHARACTERS) {
    try {
      tokens = reader.parse(text, {});
    } catch (error) {
      console.error(`markdown-it: ${error.message}`);
    }
  }
  const inside = (tokens ?? []).reduce((n, token) => n + 1 + (token.children?.length ?? 0), 0);
  if (!tokens || inside > MOST_TOKENS) {
    return [{ source: text, make: () => plain(text) }];
  }
  const lines = text.split("\n"),
    made = [];
  for (let from = 0; from < tokens.length;) {
    let to = from + 1,
      depth = tokens[from].nesting;
    while (depth > 0 && to < tokens.length) depth += tokens[to++].nesting;
    const part = tokens.slice(from, to),
      [first, last] = part[0].map ?? [0, 0];
    // A link's address may stand far from its use, so the addresses count as source.
    const own = lines.slice(first, last).join("\n"),
      source = part[0].type + own + addresses(part);
    const deep = part.some((token) => token.block && token.level >= DEEPEST - 1);
    made.push({ source, make: () => (deep ? plain(own) : build(part)[0]) });
    from = to;
  }
  return made;
}

const plain = (text) => el("div", { class: "plain", text });

function addresses(tokens) {
  const found = [];
  for (const token of tokens) {
    for (const child of token.children ?? []) if (child.attrs) found.push(child.attrs.join());
  }
  return found.join();
}

/** The elements of a whole text. */
export const markdown = (text) => blocks(text).map((block) => block.make());

/** Tags that tokens may name. Everything else of markdown-it has a case of its own. */
const TAGS = new Set([
  "p",
  "h1",
  "h2",
  "h3",
  "h4",
  "h5",
  "h6",
  "ul",
  "ol",
  "li",
  "blockquote",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
  "strong",
  "em",
  "s",
  "hr",
  "br",
  "a",
  "code",
]);

function build(tokens) {
  const root = { nodes: [] },
    open = [root];
  const add = (node) => {
    const parent = open.at(-1);
    if (parent.element) parent.element.append(node);
    else parent.nodes.push(node);
  };
  for (const token of tokens) {
    if (token.hidden) continue;
    if (token.type === "inline") build(token.children).forEach(add);
    else if (token.nesting === 1) {
      const element = opened(token);
      // A wide table scrolls in a box of its own.
      if (token.type === "table_open") {
        add(
          el(
            "div",
            { class: "wide", tabindex: "0", role: "region", "aria-label": t("table") },
            element,
          ),
        );
      } else add(element);
      open.push({ element });
    } else if (token.nesting === -1) {
      const { element } = open.pop();
      if (element.localName === "li") task(element);
    } else add(leaf(token));
  }
  return root.nodes;
}

function opened(token) {
  // Headings of an answer stand below the page's own.
  const tag = /^h\d$/.test(token.tag) ? `h${Math.min(6, Number(token.tag[1]) + 2)}` : token.tag;
  if (!TAGS.has(tag)) return el("span");
  if (tag === "a") return link(token.attrGet("href"));
  const element = el(tag);
  if (/^h\d$/.test(token.tag)) element.className = `level${token.tag[1]}`;
  if (tag === "ol" && token.attrGet("start")) element.start = Number(token.attrGet("start"));
  const align = /text-align:(left|right|center)/.exec(token.attrGet("style") ?? "")?.[1];
  if (align) element.className = align;
  return element;
}

function link(address, text) {
  const properties = { href: address, rel: "noopener noreferrer", target: "_blank", text };
  return reader.validateLink(address ?? "") ? el("a", properties) : el("span", { text });
}

function leaf(token) {
  switch (token.type) {
    case "text":
    case "text_special":
      return document.createTextNode(token.content);
    case "softbreak":
    case "hardbreak":
      return el("br");
    case "hr":
      return el("hr");
    case "code_inline":
      return el("code", { text: token.content });
    case "fence":
    case "code_block":
      return codeBlock(token.content.replace(/\n$/, ""), token.info.trim().split(/\s/)[0]);
    case "math":
      return mathElement(token.content, token.markup === "block");
    case "math_block":
      return mathElement(token.content, true);
    // A picture would be loaded from elsewhere, so it is a link.
    case "image":
      return link(token.attrGet("src"), `🖼 ${token.content || token.attrGet("src")}`);
    default:
      return document.createTextNode(token.content);
  }
}

/** `[ ]` and `[x]` at the begin of a list's item. */
function task(item) {
  const first = item.firstElementChild?.localName === "p" ? item.firstElementChild : item;
  const text = first.firstChild;
  const found = text?.nodeType === Node.TEXT_NODE && /^\[([ xX])\]\s/.exec(text.data);
  if (!found) return;
  text.data = text.data.slice(found[0].length);
  const done = found[1] !== " ";
  const label = t(done ? "taskDone" : "taskOpen");
  first.prepend(
    el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": label }),
    " ",
  );
  item.className = "task";
}
