// The keyboard: what does what, as data, and the list that shows it.

import { stop } from "./answer.js";
import { $, copy, dialog, el } from "./dom.js";
import { editLast, turnLast } from "./conversation.js";
import { hideSidebar } from "./sidebar.js";
import { toggleDrawer } from "./drawer.js";
import { isBusy, shown, state } from "./state.js";
import { toast } from "./toast.js";
import { t } from "./words.js";

const control = navigator.platform?.startsWith("Mac") ? "metaKey" : "ctrlKey";
const CONTROL = control === "metaKey" ? "⌘" : "Ctrl";

/** `[keys, word, when, what]`; without a `when` the browser or a field does it. */
const KEYS = [
  ["Enter", "send"],
  ["Shift+Enter", "newLine"],
  [
    `${CONTROL}+Shift+O`,
    "newChat",
    (e) => e[control] && e.shiftKey && e.code === "KeyO",
    () => $("new").click(),
  ],
  [`${CONTROL}+K`, "search", (e) => e[control] && !e.shiftKey && e.code === "KeyK", search],
  [
    `${CONTROL}+Shift+E`,
    "settings",
    (e) => e[control] && e.shiftKey && e.code === "KeyE",
    () => toggleDrawer(),
  ],
  [`${CONTROL}+Shift+L`, "live", (e) => e[control] && e.shiftKey && e.code === "KeyL", live],
  [
    `${CONTROL}+Shift+Y`,
    "copyLast",
    (e) => e[control] && e.shiftKey && e.code === "KeyY",
    copyLast,
  ],
  ["↑", "editLast", (e) => e.key === "ArrowUp" && inEmptyField(), editLast],
  ["Alt+←", "branchBefore", (e) => e.altKey && e.key === "ArrowLeft", () => turnLast(-1)],
  ["Alt+→", "branchAfter", (e) => e.altKey && e.key === "ArrowRight", () => turnLast(1)],
  ["/", "toField", (e) => e.key === "/" && !e[control] && !typing(), () => $("text").focus()],
  ["Esc", "stopOrClose"],
  [`${CONTROL}+/`, "keys", (e) => e[control] && e.key === "/", showKeys],
];

const typing = () => document.activeElement?.matches("input, textarea, select, dialog *");
const inEmptyField = () => document.activeElement === $("text") && !$("text").value;

export function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") return escape();
    const key = KEYS.find(([, , when]) => when?.(event));
    if (!key) return;
    event.preventDefault();
    key[3]();
  });
}

/** Closes what lies over the chat, else stops the answer. */
function escape() {
  if (document.querySelector("dialog[open], :popover-open")) return;
  if (document.body.classList.contains("sidebar")) hideSidebar();
  else if (!$("drawer").hidden) toggleDrawer(false);
  else if (location.hash === "#live") history.back();
  else if (isBusy(state.chat.id)) stop();
}

function search() {
  document.body.classList.remove("wide");
  document.body.classList.add("sidebar");
  $("search").focus();
  $("search").select();
}

function live() {
  if (location.hash === "#live") history.back();
  else location.hash = "#live";
}

async function copyLast() {
  const last = shown().findLast((m) => m.role === "assistant");
  if (last) toast(t((await copy(last.content)) ? "copied" : "notCopied"), null, 2);
}

export function showKeys() {
  dialog(t("keys"), [
    el(
      "dl",
      { class: "keys" },
      KEYS.map(([keys, word]) => [
        el(
          "dt",
          {},
          keys.split("+").map((key) => el("kbd", { text: key })),
        ),
        el("dd", { text: t(word) }),
      ]),
    ),
  ]);
}
