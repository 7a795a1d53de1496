// Puts the page together.

import { lookForWriters } from "./answer.js";
import { showComposer } from "./composer.js";
import { showConversation } from "./conversation.js";
import { $, menu } from "./dom.js";
import { loadSettings, showDrawer, toggleDrawer } from "./drawer.js";
import { generalMenu } from "./general.js";
import { icon } from "./icons.js";
import { listenToKeys } from "./keys.js";
import { showPicker } from "./picker.js";
import { preference, prefer } from "./preferences.js";
import { hideSidebar, showSidebar } from "./sidebar.js";
import { look, status } from "./status.js";
import { newChat, on, openChat, reloadChats, state } from "./state.js";
import { openStore } from "./store.js";
import { toast } from "./toast.js";
import { chooseLanguage, t } from "./words.js";

/** Milliseconds between two looks for answers of tabs that were closed. */
const WRITERS = 3000;

await chooseLanguage(preference("language"));
for (const element of document.querySelectorAll("[data-icon]"))
  element.prepend(icon(element.dataset.icon));
for (const element of document.querySelectorAll("[data-t]")) element.append(t(element.dataset.t));
for (const element of document.querySelectorAll("[data-label]")) {
  const label = t(element.dataset.label);
  element.setAttribute("aria-label", label);
  if (element.localName === "button") element.title = label;
  if (element.placeholder !== undefined) element.placeholder = label;
}

const keeps = await openStore();
await loadSettings();
await reloadChats();
showConversation($("log"), $("jump"));
showComposer();
showSidebar();
showDrawer();
showPicker();
listenToKeys();
menu($("general"), generalMenu, t("general"));

const asked = /^#chat=([\w.-]+)$/.exec(location.hash)?.[1];
if (!(asked && (await openChat(asked)))) {
  const live = location.hash === "#live";
  newChat();
  if (live) location.hash = "#live";
}
if (!keeps) toast(t("notKeptHere"), null, 20);

const narrow = () => matchMedia("(max-width: 56rem)").matches;

// The sidebar lies over the chat on narrow screens, and can be folded away on wide ones.
$("show-sidebar").addEventListener("click", () => {
  const over = narrow();
  const shown = document.body.classList.toggle(over ? "sidebar" : "wide");
  if (!over) prefer("wide", shown ? "1" : "");
});
$("veil").addEventListener("click", () => {
  hideSidebar();
  toggleDrawer(false);
});
document.body.classList.toggle("wide", preference("wide") === "1");

/** The live view is a page of its own, loaded when it is first looked at. */
async function view() {
  const live = location.hash === "#live";
  status.live = live;
  $("chat-view").hidden = live;
  $("live-view").hidden = !live;
  $("live").setAttribute("aria-pressed", String(live));
  title();
  hideSidebar();
  if (live && narrow()) toggleDrawer(false);
  if (live) (await import("./live.js")).showLive($("live-view"));
  look();
}
addEventListener("hashchange", view);

function title() {
  const of = status.live ? t("live") : state.chat.title;
  document.title = of ? `${of} · kjit` : "kjit";
}
on("chats", title);
on("chat", title);
$("live").addEventListener("click", () => {
  if (location.hash === "#live")
    location.hash = state.messages.size ? `#chat=${state.chat.id}` : "";
  else location.hash = "#live";
});
on("chat", ({ other }) => {
  if (other && status.live) view();
});

await view();
setInterval(lookForWriters, WRITERS);
document.body.dataset.ready = "true";
if (!narrow()) $("text").focus();
