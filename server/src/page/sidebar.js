// The list of chats: pinned ones, folders, then by day; search; each chat's menu.

import { exportChat } from "./exchange.js";
import { $, dialog, el, iconButton, menu, menuItem, textButton } from "./dom.js";
import { goTo } from "./conversation.js";
import { icon } from "./icons.js";
import { findMessages } from "./store.js";
import { change, isBusy, kept, newChat, on, openChat, remove, state } from "./state.js";
import { preference, prefer } from "./preferences.js";
import { t } from "./words.js";

/** Chats that are listed at once. More are found by the search. */
const MOST = 300;
const closed = new Set(preference("closed").split("\n").filter(Boolean));
let found = null;

export function showSidebar() {
  for (const name of ["chats", "chat", "busy"]) on(name, draw);
  const field = $("search");
  let timer = null;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 150);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !field.value) return;
    event.stopPropagation();
    field.value = "";
    search();
  });
  $("new").addEventListener("click", () => {
    newChat();
    hideSidebar();
    $("text").focus();
  });
}

export const hideSidebar = () => document.body.classList.remove("sidebar");

async function search() {
  const text = $("search").value.trim();
  if (!text) {
    found = null;
    return draw();
  }
  const messages = (await kept(() => findMessages(text, 100))) ?? [];
  if ($("search").value.trim() !== text) return;
  const title = (chat) => `${chat.title} ${chat.folder}`.toLowerCase().includes(text.toLowerCase());
  const results = state.chats.filter(title).map((chat) => ({ chat }));
  for (const one of messages) {
    const chat = state.chats.find((c) => c.id === one.chat);
    if (chat && results.filter((r) => r.chat === chat && r.one).length < 3)
      results.push({ chat, one });
  }
  found = { text, results };
  draw();
}

function draw() {
  const place = $("chats"),
    top = place.scrollTop;
  if (found) {
    const items = found.results.map(({ chat, one }) => row(chat, one));
    place.replaceChildren(
      items.length ? el("ul", {}, items) : el("p", { class: "none", text: t("nothingFound") }),
    );
    return;
  }
  const groups = grouped(state.chats.slice(0, MOST));
  place.replaceChildren(
    ...groups.map(({ name, folder, chats }) => {
      const items = el(
        "ul",
        {},
        chats.map((chat) => row(chat)),
      );
      if (!folder) return el("section", {}, el("h2", { text: name }), items);
      const box = el(
        "details",
        { open: !closed.has(name) },
        el("summary", {}, icon("folder"), el("span", { text: name })),
        items,
      );
      box.addEventListener("toggle", () => {
        if (box.open) closed.delete(name);
        else closed.add(name);
        prefer("closed", [...closed].join("\n"));
      });
      return box;
    }),
  );
  if (!state.chats.length) place.append(el("p", { class: "none", text: t("noChats") }));
  place.scrollTop = top;
}

function grouped(chats) {
  const today = new Date().setHours(0, 0, 0, 0),
    day = 24 * 3600 * 1000;
  const groups = new Map();
  const put = (name, folder, chat) => {
    if (!groups.has(name)) groups.set(name, { name, folder, chats: [] });
    groups.get(name).chats.push(chat);
  };
  const pinned = chats.filter((c) => c.pinned),
    filed = chats.filter((c) => !c.pinned && c.folder);
  for (const chat of pinned) put(t("pinned"), false, chat);
  for (const chat of filed.sort((a, b) => a.folder.localeCompare(b.folder)))
    put(chat.folder, true, chat);
  for (const chat of chats.filter((c) => !c.pinned && !c.folder)) {
    const age = today - chat.changed;
    put(
      t(age <= 0 ? "today" : age <= day ? "yesterday" : age <= 7 * day ? "thisWeek" : "older"),
      false,
      chat,
    );
  }
  return [...groups.values()];
}

function row(chat, one = null) {
  const current = chat.id === state.chat?.id && !one;
  const title = chat.title || t("untitled");
  const name = el("span", { class: "name", text: title });
  const open = el(
    "button",
    {
      type: "button",
      class: "open",
      "aria-current": current ? "true" : null,
      title,
      onclick: async () => {
        location.hash === "#live" && history.replaceState(null, "", location.pathname);
        await openChat(chat.id, one?.id);
        hideSidebar();
        if (one) goTo(one.id);
      },
    },
    name,
    one ? snippet(one) : null,
  );
  if (isBusy(chat.id))
    open.append(el("span", { class: "busy", role: "img", "aria-label": t("answering") }));
  const more = iconButton("more", t("menuOf", { title }), () => {}, { class: "small" });
  menu(more, () => actions(chat, open), title);
  return el("li", { class: current ? "current" : null }, open, one ? null : more);
}

function snippet(one) {
  const at = one.content.toLowerCase().indexOf(found.text.toLowerCase());
  const from = Math.max(0, at - 24),
    end = at + found.text.length;
  return el(
    "span",
    { class: "snippet" },
    (from ? "…" : "") + one.content.slice(from, at),
    el("mark", { text: one.content.slice(at, end) }),
    one.content.slice(end, end + 60),
  );
}

function actions(chat, place) {
  const pinned = !chat.pinned;
  return [
    menuItem("pin", t(pinned ? "pin" : "unpin"), () => change(chat, (c) => (c.pinned = pinned))),
    menuItem("edit", t("rename"), () => rename(chat, place)),
    menuItem("folder", t("toFolder"), () => toFolder(chat)),
    el("hr"),
    menuItem("download", t("exportMarkdown"), () => exportChat(chat, "md")),
    menuItem("download", t("exportJson"), () => exportChat(chat, "json")),
    el("hr"),
    menuItem("trash", t("delete"), () => remove(chat), { class: "bad" }),
  ];
}

/** The title becomes a field where it stands. Enter keeps it, Escape does not. */
function rename(chat, place) {
  const field = el("input", {
    class: "rename",
    value: chat.title,
    "aria-label": t("rename"),
    maxlength: "200",
  });
  let done = false;
  const end = async (keep) => {
    if (done) return;
    done = true;
    const title = field.value.trim();
    if (keep && title && title !== chat.title) await change(chat, (c) => (c.title = title));
    else draw();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      end(false);
    }
  });
  field.addEventListener("blur", () => end(true));
  place.replaceWith(field);
  field.focus();
  field.select();
}

function toFolder(chat) {
  const names = [...new Set(state.chats.map((c) => c.folder).filter(Boolean))].sort();
  const field = el("input", {
    id: "folder-name",
    value: chat.folder,
    list: "folders",
    maxlength: "100",
    "aria-label": t("folderName"),
  });
  const set = (name) => {
    box.close();
    change(chat, (c) => (c.folder = name));
  };
  field.addEventListener("keydown", (event) => event.key === "Enter" && set(field.value.trim()));
  const box = dialog(t("toFolder"), [
    el("p", { text: t("folderHint") }),
    field,
    el(
      "datalist",
      { id: "folders" },
      names.map((name) => el("option", { value: name })),
    ),
    el(
      "div",
      { class: "row end" },
      chat.folder ? textButton(t("noFolder"), () => set("")) : null,
      textButton(t("ok"), () => set(field.value.trim()), { class: "main" }),
    ),
  ]);
  field.focus();
}
