// Elements, made without HTML: text from a model, a file or the server only becomes text nodes.

import { icon } from "./icons.js";
import { t } from "./words.js";

export const $ = (id) => document.getElementById(id);

/** Makes an element. `on…` properties are listeners; `false` and `null` are left out. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** A button that shows an icon. Its name is read aloud and shown on hover. */
export function iconButton(name, label, onclick, more = {}) {
  const { shown, class: extra = "", ...rest } = more;
  const properties = { type: "button", class: `icon ${extra}`, "aria-label": label, title: label };
  return el(
    "button",
    { ...properties, onclick, ...rest },
    icon(name),
    shown ? el("span", { text: shown }) : null,
  );
}

export function textButton(label, onclick, more = {}) {
  return el("button", { type: "button", text: label, onclick, ...more });
}

/** A menu below a button. `items` returns buttons, or lists of them, on each opening. */
export function menu(button, items, label) {
  const list = el("div", { class: "menu", role: "menu", "aria-label": label, popover: "auto" });
  const buttons = () => [...list.querySelectorAll("button:not([disabled])")];
  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "false");
  const fill = () => list.replaceChildren(...items().flat().filter(Boolean));
  const isOpen = () => list.matches(":popover-open");
  // A press on the button of an open menu has closed it before the click comes.
  let closes = false;
  button.addEventListener("pointerdown", () => (closes = isOpen()));
  button.addEventListener("click", () => {
    if (closes) return void (closes = false);
    // Inside of the part that the button is in, for readers that go by parts.
    (button.closest("nav, main, aside") ?? document.body).append(list);
    fill();
    list.showPopover();
    place(list, button);
    buttons()[0]?.focus();
  });
  list.addEventListener("click", (event) => {
    if (event.target.closest("[role^=menuitem]")) list.hidePopover();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = buttons(),
      at = all.indexOf(document.activeElement);
    all[(at + step + all.length) % all.length]?.focus();
  });
  list.addEventListener("toggle", (event) => {
    const open = event.newState === "open";
    button.setAttribute("aria-expanded", String(open));
    if (!open) {
      // Removed only after the browser has given the focus back.
      setTimeout(() => isOpen() || list.remove(), 0);
    }
  });
  /** Shows the items anew, if the menu is open. The focus stays where it is. */
  button.refresh = () => {
    if (!isOpen()) return;
    const at = buttons().indexOf(document.activeElement);
    fill();
    buttons()[at]?.focus();
  };
  return button;
}

export function menuItem(name, label, onclick, more = {}) {
  const properties = { type: "button", role: "menuitem", onclick, ...more };
  return el("button", properties, name ? icon(name) : null, el("span", { text: label }));
}

function place(list, button) {
  const at = button.getBoundingClientRect(),
    own = list.getBoundingClientRect(),
    gap = 4;
  const below = at.bottom + gap + own.height < innerHeight;
  const left = Math.min(at.left, innerWidth - own.width - 8);
  list.style.left = `${Math.max(8, left)}px`;
  list.style.top = `${below ? at.bottom + gap : Math.max(8, at.top - gap - own.height)}px`;
}

/** A dialog with a title and a button to close it. Opened at once, removed when it is closed. */
export function dialog(title, children, extra = "") {
  const box = el("dialog", { class: `box ${extra}`, "aria-label": title });
  const close = iconButton("close", t("close"), () => box.close());
  box.append(el("header", {}, el("h2", { text: title }), close), ...children);
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => event.target === box && box.close());
  document.body.append(box);
  box.showModal();
  return box;
}

/** Copies a text. Pages that are not served by HTTPS or from this machine lack the clipboard. */
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed: the older way may be.
    }
  }
  const field = el("textarea", { class: "away", value: text, "aria-hidden": "true" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/** A button that copies and says so. */
export function copyButton(label, text, more = {}) {
  const button = iconButton(
    "copy",
    label,
    async () => {
      const done = await copy(text());
      const told = done ? t("copied") : t("notCopied");
      button.replaceChildren(icon(done ? "check" : "close"), ...shown(told));
      button.setAttribute("aria-label", told);
      setTimeout(() => {
        button.replaceChildren(icon("copy"), ...shown(more.shown));
        button.setAttribute("aria-label", label);
      }, 1500);
    },
    more,
  );
  const shown = (word) => (more.shown ? [el("span", { text: word })] : []);
  return button;
}

/** Saves a text as a file of the user. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
