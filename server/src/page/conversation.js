// The messages of the branch that is shown. Each has a view that is kept while its message stays,
// so that nothing jumps and no selection is lost.

import { again, goOn, send } from "./answer.js";
import { copyButton, el, iconButton, menu, menuItem, textButton } from "./dom.js";
import { blocks } from "./markdown.js";
import { showBlocks } from "./morph.js";
import { status } from "./status.js";
import { choose, isBusy, on, shown, siblings, state } from "./state.js";
import { beside } from "./tree.js";
import { welcome } from "./welcome.js";
import { fixed, t } from "./words.js";

let log = null,
  jump = null;
const views = new Map();

export function showConversation(place, button) {
  log = place;
  jump = button;
  on("chat", ({ other }) => render(other));
  on("busy", (id) => id === state.chat?.id && shown().forEach(update));
  on("message", (one) => one.chat === state.chat?.id && soon(one));
  log.addEventListener(
    "scroll",
    () => {
      follows = atEnd();
      jump.hidden = follows;
    },
    { passive: true },
  );
  jump.addEventListener("click", toEnd);
}

// Whether the view keeps to the end while an answer grows.
let follows = true;
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 60;

export function toEnd() {
  follows = true;
  jump.hidden = true;
  log.scrollTop = log.scrollHeight;
}

function render(other) {
  const list = shown();
  if (other) views.clear();
  if (!list.length) {
    views.clear();
    log.replaceChildren(welcome());
    jump.hidden = true;
    return;
  }
  log.querySelector(".welcome")?.remove();
  const wanted = new Set(list.map((m) => m.id));
  for (const [id, view] of views) {
    if (wanted.has(id)) continue;
    view.root.remove();
    views.delete(id);
  }
  if (other) log.replaceChildren();
  list.forEach((one, at) => {
    if (!views.has(one.id)) views.set(one.id, one.role === "user" ? question(one) : reply(one));
    const { root } = views.get(one.id);
    if (log.children[at] !== root) log.insertBefore(root, log.children[at] ?? null);
    update(one);
  });
  if (other || state.running.has(state.chat.id)) toEnd();
}

// An answer is drawn at most once a frame, and takes at most a quarter of the page's time: an
// answer that is slow to draw is drawn less often.
const due = new Set();
let planned = false,
  rests = 0;

function soon(one) {
  due.add(one);
  if (planned) return;
  planned = true;
  setTimeout(() => requestAnimationFrame(draw), rests);
}

function draw() {
  const begun = performance.now();
  planned = false;
  for (const message of due) update(message);
  due.clear();
  if (follows) log.scrollTop = log.scrollHeight;
  const took = performance.now() - begun;
  rests = took < 3 ? 0 : Math.min(2000, 3 * took);
}

function update(one) {
  views.get(one.id)?.update();
}

/** Shows a message that was found. */
export function goTo(id) {
  const root = views.get(id)?.root;
  if (!root) return;
  root.scrollIntoView({ block: "center" });
  root.classList.add("found");
  setTimeout(() => root.classList.remove("found"), 2000);
}

function branches(one) {
  const box = el("span", { class: "branches" });
  const go = (step) => () => {
    const other = beside(state.messages, one, step);
    if (other) choose(other);
  };
  const left = iconButton("left", t("branchBefore"), go(-1), { class: "small" });
  const right = iconButton("right", t("branchAfter"), go(1), { class: "small" });
  const place = el("span", { class: "place" });
  box.append(left, place, right);
  box.update = () => {
    const all = siblings(one),
      at = all.findIndex((m) => m.id === one.id);
    box.hidden = all.length < 2;
    place.textContent = `${at + 1}/${all.length}`;
    left.disabled = at <= 0 || isBusy(one.chat);
    right.disabled = at >= all.length - 1 || isBusy(one.chat);
  };
  return box;
}

function question(one) {
  const text = el("div", { class: "text", text: one.content });
  const files = (one.files ?? []).map((file) =>
    el(
      "details",
      { class: "file", open: Boolean(file.image) },
      el("summary", { text: file.name }),
      file.image
        ? el("img", { src: file.image, alt: file.name })
        : el("pre", { tabindex: "0", text: file.text }),
    ),
  );
  const more = textButton(
    t("showAll"),
    () => {
      const long = bubble.classList.toggle("long");
      more.textContent = t(long ? "showAll" : "showLess");
    },
    { class: "link" },
  );
  const long = one.content.length > 1500 || one.content.split("\n").length > 16;
  const bubble = el(
    "div",
    { class: long ? "bubble long" : "bubble" },
    files,
    text,
    long ? more : null,
  );
  const edit = iconButton("edit", t("edit"), () => editing(one, root, bubble), { class: "edit" });
  const turns = branches(one);
  const actions = el(
    "div",
    { class: "actions" },
    edit,
    copyButton(t("copy"), () => one.content),
    turns,
  );
  const root = el("article", { class: "user", "aria-label": t("you") }, bubble, actions);
  const show = () => {
    turns.update();
    edit.disabled = isBusy(one.chat);
  };
  return { root, update: show };
}

/** A question is edited where it stands. The old one stays, with all that followed, beside it. */
function editing(one, root, bubble) {
  const field = el("textarea", { "aria-label": t("edit"), value: one.content, rows: "3" });
  const close = () => {
    box.remove();
    root.classList.remove("editing");
  };
  const go = async () => {
    if (!field.value.trim() && !one.files?.length) return;
    close();
    await send(field.value.trim(), one.files, one.parent ?? null);
  };
  const box = el(
    "div",
    { class: "editor" },
    field,
    el(
      "div",
      { class: "row" },
      el("small", { text: t("editHint") }),
      textButton(t("cancel"), close),
      textButton(t("send"), go, { class: "main" }),
    ),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      go();
    }
  });
  root.classList.add("editing");
  bubble.after(box);
  field.style.height = `${Math.min(400, field.scrollHeight + 4)}px`;
  field.focus();
}

/** Edits the last question of the branch. */
export function editLast() {
  const last = shown().findLast((m) => m.role === "user");
  if (last) views.get(last.id)?.root.querySelector(".edit")?.click();
}

/** Shows the branch beside the last message that has one. */
export function turnLast(step) {
  const last = shown().findLast((m) => siblings(m).length > 1);
  const other = last && !isBusy(last.chat) && beside(state.messages, last, step);
  if (other) choose(other);
}

function reply(one) {
  const thought = el("div", { class: "text" });
  const summary = el("summary");
  const reasoning = el("details", { class: "reasoning", hidden: true }, summary, thought);
  const text = el("div", { class: "text" });
  const note = el("p", { class: "note", role: "status" });
  const turns = branches(one);
  const figures = el("span", { class: "figures" });
  const anew = iconButton("again", t("again"), () => {});
  menu(anew, () => temperatures(one), t("again"));
  const actions = el(
    "div",
    { class: "actions" },
    copyButton(t("copy"), () => one.content),
    anew,
    turns,
    figures,
  );
  const root = el(
    "article",
    { class: "assistant", "aria-label": t("model") },
    reasoning,
    text,
    note,
    actions,
  );
  let drawn = null,
    thoughtDrawn = null,
    before = null;
  const show = () => {
    const writes = one.state === "writing",
      busy = isBusy(one.chat);
    if (one.reasoning !== thoughtDrawn) {
      thoughtDrawn = one.reasoning;
      reasoning.hidden = !one.reasoning;
      showBlocks(thought, blocks(one.reasoning));
    }
    // A thought is open while the model thinks. Afterwards it is the reader's choice.
    const thinks = writes && !one.content;
    if (thinks !== before) reasoning.open = thinks;
    before = thinks;
    summary.textContent =
      thinks || one.thought == null
        ? t("reasoning")
        : t("thoughtFor", { seconds: fixed(one.thought, 1) });
    if (one.content !== drawn) {
      drawn = one.content;
      showBlocks(text, blocks(one.content));
    }
    root.classList.toggle("writing", writes);
    root.setAttribute("aria-busy", String(writes));
    ended(one, note, busy);
    turns.update();
    anew.disabled = busy;
    figures.replaceChildren(...measured(one));
  };
  return { root, update: show };
}

function temperatures(one) {
  const item = (label, temperature) =>
    menuItem(temperature == null ? "again" : null, label, () => again(one, temperature));
  const others = [
    ["colder", 0],
    ["cooler", 0.4],
    ["warmer", 1],
    ["hottest", 1.4],
  ];
  return [
    item(t("again"), null),
    el("hr"),
    ...others.map(([name, value]) => item(`${t(name)} (${fixed(value, 1)})`, value)),
  ];
}

/** How the answer ended, and what can be done. */
function ended(one, note, busy) {
  const kinds = { cut: "cut", stopped: "stopped", interrupted: "interrupted", error: "failed" };
  const kind = kinds[one.state];
  const waits = one.state === "writing" && !one.content && !one.reasoning;
  const loads = waits && ["loading", "unloaded"].includes(status.modelState(one.model));
  const key = [one.state, one.error, busy, waits, loads].join();
  if (note.key === key) return;
  note.key = key;
  note.hidden = !kind && !waits;
  note.className = kind === "failed" ? "note bad" : "note";
  if (waits) {
    note.replaceChildren(
      el("span", { class: "dots", text: loads ? t("modelLoads") : t("waiting") }),
    );
    return;
  }
  if (!kind) return void note.replaceChildren();
  const text = kind === "failed" ? one.error : t(kind);
  const continues = one.content && !one.reasoning && kind !== "failed";
  note.replaceChildren(
    el("span", { text }),
    " ",
    continues
      ? textButton(t("continue"), () => goOn(one), { class: "link continue", disabled: busy })
      : "",
    kind === "failed"
      ? textButton(t("tryAgain"), () => again(one), { class: "link retry", disabled: busy })
      : "",
  );
}

function measured(one) {
  const { tokens, rate, first } = one.stats ?? {};
  const parts = [];
  if (rate) parts.push(t("rate", { rate: fixed(rate, 1) }));
  if (first != null) parts.push(t("firstAfter", { seconds: fixed(first, 2) }));
  if (tokens) parts.push(t("tokens", { tokens }));
  if (one.temperature != null) parts.push(t("atTemperature", { value: fixed(one.temperature, 1) }));
  return parts.map((text) => el("span", { text }));
}
