// Blocks of code: the language's name, a button to copy, colours by highlight.js.

import { copyButton, el } from "./dom.js";
import { t } from "./words.js";

/** Longer code is not coloured: it would hold up the page. */
const MOST = 60_000;
/** Code that grows is coloured this many milliseconds after its last change. */
const PAUSE = 250;

let loading = null;
const load = () => (loading ??= import("./vendor/highlight.js").then((module) => module.default));

const NAMES = {
  js: "JavaScript",
  javascript: "JavaScript",
  ts: "TypeScript",
  typescript: "TypeScript",
  py: "Python",
  python: "Python",
  rs: "Rust",
  rust: "Rust",
  sh: "Shell",
  bash: "Bash",
  shell: "Shell",
  cpp: "C++",
  "c++": "C++",
  c: "C",
  cs: "C#",
  csharp: "C#",
  go: "Go",
  java: "Java",
  html: "HTML",
  css: "CSS",
  json: "JSON",
  yaml: "YAML",
  yml: "YAML",
  sql: "SQL",
  xml: "XML",
  md: "Markdown",
  diff: "Diff",
  mermaid: "Mermaid",
  latex: "LaTeX",
  tex: "TeX",
  toml: "TOML",
  php: "PHP",
  ruby: "Ruby",
  rb: "Ruby",
};

export function codeBlock(text, language) {
  const code = el("code", { text });
  const name = el("span", { class: "language", text: NAMES[language.toLowerCase()] ?? language });
  const copy = copyButton(t("copyCode"), () => code.textContent, {
    shown: t("copy"),
    class: "small",
  });
  const pre = el("pre", { tabindex: "0" }, code);
  const box = el("div", { class: "code" }, el("div", { class: "head" }, name, copy), pre);
  box.language = language;
  box.text = text;
  box.grow = (fresh) => {
    if (fresh.language !== box.language) return false;
    if (fresh.text === box.text) return true;
    // The colours so far stay, and the new text follows uncoloured until the code rests.
    if (fresh.text.startsWith(box.text)) code.append(fresh.text.slice(box.text.length));
    else code.textContent = fresh.text;
    box.text = fresh.text;
    colourSoon(box, code);
    return true;
  };
  colourSoon(box, code, 0);
  return box;
}

function colourSoon(box, code, pause = PAUSE) {
  clearTimeout(box.timer);
  if (!box.language || box.text.length > MOST) return;
  box.timer = setTimeout(() => colour(box, code), pause);
}

async function colour(box, code) {
  const { text, language } = box;
  try {
    const highlight = await load();
    if (!highlight.getLanguage(language)) return;
    const result = highlight.highlight(text, { language, ignoreIllegals: true });
    // The tree, not the HTML, becomes elements. A selection is not wiped for colours.
    if (box.text !== text || selects(code)) return;
    code.replaceChildren(...result._emitter.root.children.map(coloured));
  } catch (error) {
    console.error(`code is not coloured: ${error.message}`);
  }
}

function coloured(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const names = (node.scope ?? "").split(".").map((part, at) => (at ? `${part}_` : `hljs-${part}`));
  return el("span", { class: node.scope ? names.join(" ") : null }, node.children.map(coloured));
}

function selects(element) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(element, true);
}
