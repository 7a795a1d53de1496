// The chats of this page and the one that is shown. Parts of the page listen to `bus`.

import * as store from "./store.js";
import { sound } from "./settings.js";
import { hasWriter, tell, whenTold } from "./tabs.js";
import { toast } from "./toast.js";
import { children, newestBelow, path } from "./tree.js";
import { t } from "./words.js";

/** Events: `chats` (the list changed), `chat` (another one is shown, or its messages changed),
 * `message` (`detail` is one that grew), `busy` (an answer began or ended). */
export const bus = new EventTarget();
export const say = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));
export const on = (name, run) => bus.addEventListener(name, (event) => run(event.detail));

export const state = {
  chats: [],
  chat: null,
  messages: new Map(),
  /** Settings of new chats. */
  usual: sound({}),
  presets: [],
  /** Answers that this tab writes: chat's id → `{ message, stop() }`. */
  running: new Map(),
  /** Chats into which other tabs write. */
  elsewhere: new Set(),
};

/** A write that fails is said: nothing is lost in silence. */
export async function kept(work) {
  try {
    return await work();
  } catch (error) {
    toast(t("notKept", { why: error?.message ?? error?.name ?? "" }));
    return undefined;
  }
}

export function newChat() {
  const now = Date.now();
  const chat = {
    id: store.newId(),
    title: "",
    created: now,
    changed: now,
    pinned: false,
    folder: "",
    deleted: 0,
    settings: { ...state.usual },
    head: null,
    model: state.chat?.model ?? "",
  };
  show(chat, new Map());
  return chat;
}

function show(chat, messages) {
  state.chat = chat;
  state.messages = messages;
  const address = messages.size ? `#chat=${chat.id}` : location.pathname + location.search;
  history.replaceState(null, "", address);
  say("chat", { other: true });
}

/** Shows a chat. `at` is a message that has to be on the branch that is shown. */
export async function openChat(id, at = null) {
  const chat = state.chats.find((c) => c.id === id);
  if (!chat) return false;
  const messages = await load(id);
  if (at && messages.has(at) && !path(messages, chat.head).some((m) => m.id === at)) {
    const head = newestBelow(messages, at);
    await change(chat, (c) => (c.head = head));
  }
  show(chat, messages);
  return true;
}

async function load(id) {
  const all = new Map(((await kept(() => store.messagesOf(id))) ?? []).map((m) => [m.id, m]));
  const own = state.running.get(id)?.message;
  if (own) all.set(own.id, own);
  for (const one of all.values()) {
    if (one.state !== "writing" || one === own) continue;
    if (await hasWriter(id, one)) state.elsewhere.add(id);
    else {
      // The page was closed in the midst of the answer.
      one.state = "interrupted";
      await kept(() => store.putMessage(one));
    }
  }
  return all;
}

/** Reads the list anew. A chat that is known stays the same object. */
export async function reloadChats() {
  const all = (await kept(store.allChats)) ?? [];
  const known = new Map([...state.chats, state.chat].filter(Boolean).map((c) => [c.id, c]));
  state.chats = all.map((c) => (known.has(c.id) ? Object.assign(known.get(c.id), c) : c));
  say("chats");
}

const turns = new WeakMap();

/**
 * Changes a chat here and in the database, whatever other tabs did to it meanwhile. `edit` runs
 * twice, the second time later: it reads nothing that may be another's by then.
 */
export async function change(chat, edit) {
  const turn = (turns.get(chat) ?? 0) + 1;
  turns.set(chat, turn);
  edit(chat);
  const saved = await kept(() => store.changeChat(chat.id, edit));
  // What a later change did here is not undone by this one's record.
  if (saved && turns.get(chat) === turn) Object.assign(chat, saved);
  tell({ chat: chat.id });
  say("chats");
}

/** Adds a message below `parent` and shows it. The first one saves the chat. */
export async function add(chat, messages, fields) {
  const one = {
    id: store.newId(),
    chat: chat.id,
    content: "",
    reasoning: "",
    files: [],
    at: Date.now(),
    state: "done",
    ...fields,
  };
  messages.set(one.id, one);
  chat.head = one.id;
  chat.changed = one.at;
  if (!state.chats.some((c) => c.id === chat.id)) {
    chat.title = titleOf(one);
    state.chats.unshift(chat);
    await kept(() => store.saveChat(chat, [one]));
    if (chat === state.chat) history.replaceState(null, "", `#chat=${chat.id}`);
  } else {
    await kept(() => store.putMessage(one));
    await change(chat, (c) => {
      c.head = one.id;
      c.changed = one.at;
    });
  }
  tell({ chat: chat.id });
  state.chats.sort((a, b) => b.changed - a.changed);
  say("chats");
  if (chat === state.chat) say("chat", {});
  return one;
}

export const titleOf = (message) =>
  (message.content || message.files[0]?.name || "").trim().split("\n")[0].slice(0, 80);

/** Deletes a chat. It can be brought back. */
export async function remove(chat) {
  state.running.get(chat.id)?.stop();
  await change(chat, (c) => (c.deleted = Date.now()));
  state.chats = state.chats.filter((c) => c !== chat);
  say("chats");
  if (chat === state.chat) newChat();
  toast(t("deleted", { title: chat.title }), {
    label: t("undo"),
    run: async () => {
      await change(chat, (c) => (c.deleted = 0));
      await reloadChats();
      await openChat(chat.id);
    },
  });
}

/** The messages that are shown. */
export const shown = () => path(state.messages, state.chat.head);
export const siblings = (one) => children(state.messages, one.parent ?? null);

/** Shows the branch of another sibling. */
export async function choose(one) {
  const { chat } = state,
    head = newestBelow(state.messages, one.id);
  chat.head = head;
  say("chat", {});
  await change(chat, (c) => (c.head = head));
}

export const isBusy = (id) => state.running.has(id) || state.elsewhere.has(id);

// Other tabs. One piece of news after the other: each reads the database.
let before = Promise.resolve();
whenTold((news) => {
  before = before.then(() => told(news)).catch((error) => console.error(error));
});

async function told(news) {
  if (news.stop) return void state.running.get(news.stop)?.stop();
  if (!news.chat) return;
  if (news.writing === true) state.elsewhere.add(news.chat);
  if (news.writing === false) state.elsewhere.delete(news.chat);
  if (news.message && news.chat === state.chat?.id) {
    const one = await store.message(news.message);
    const known = state.messages.get(news.message);
    if (one && known && news.writing === undefined) {
      Object.assign(known, one);
      return void say("message", known);
    }
  }
  const head = state.chat?.head;
  await reloadChats();
  say("busy", news.chat);
  if (news.chat !== state.chat?.id) return;
  const chat = state.chats.find((c) => c.id === news.chat);
  if (!chat) return void newChat();
  // This tab stays on its branch, unless that branch is what grew.
  const messages = await load(chat.id),
    was = head && messages.has(head);
  const grew = was && path(messages, chat.head).some((m) => m.id === head);
  if (was && !grew) chat.head = head;
  state.chat = chat;
  // What is on the screen belongs to the messages that are known: they are brought up to date.
  for (const [id, one] of messages) {
    const known = state.messages.get(id);
    if (known) messages.set(id, Object.assign(known, one));
  }
  state.messages = messages;
  say("chat", {});
}
