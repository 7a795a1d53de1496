// Chats and messages in IndexedDB. Each message is a record of its own, so that tabs never write
// each other's; a chat's record is read, changed and written in one transaction.

import { importOld } from "./old.js";

const NAME = "kjit",
  VERSION = 1;
/** Deleted chats can be brought back for a day. */
const KEPT = 24 * 3600 * 1000;

let database = null;
// Without IndexedDB (some private windows) chats live as long as the page.
const memory = { chats: new Map(), messages: new Map(), things: new Map() };

export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))]
    .map((b) => b.toString(16).padStart(2, "0"))
    .join("");

/** Opens the database. Returns whether chats are kept. */
export async function openStore() {
  try {
    database = await new Promise((resolve, reject) => {
      const request = indexedDB.open(NAME, VERSION);
      request.onupgradeneeded = () => {
        const made = request.result;
        made.createObjectStore("chats", { keyPath: "id" });
        made.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
        made.createObjectStore("things", { keyPath: "name" });
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new Error("another tab holds an older version"));
    });
    database.onversionchange = () => database.close();
  } catch (error) {
    console.warn(`chats are not kept: ${error?.message}`);
    return false;
  }
  await importOld(saveChat);
  await forgetDeleted();
  return true;
}

/** Runs a transaction. `work` gets the object stores and returns requests' results by callbacks. */
function within(mode, stores, work) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(stores, mode);
    const got = {};
    transaction.oncomplete = () => resolve(got.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser gave up"));
    work(...stores.map((store) => transaction.objectStore(store)), got);
  });
}

const results = (request, got) => (request.onsuccess = () => (got.result = request.result));

export async function allChats() {
  const all = database
    ? await within("readonly", ["chats"], (chats, got) => results(chats.getAll(), got))
    : [...memory.chats.values()];
  return all.filter((chat) => !chat.deleted).sort((a, b) => b.changed - a.changed);
}

export async function messagesOf(chat) {
  if (!database) return [...memory.messages.values()].filter((m) => m.chat === chat);
  return within("readonly", ["messages"], (messages, got) => {
    results(messages.index("chat").getAll(chat), got);
  });
}

export async function message(id) {
  if (!database) return memory.messages.get(id);
  return within("readonly", ["messages"], (messages, got) => results(messages.get(id), got));
}

export async function putMessage(one) {
  if (!database) return void memory.messages.set(one.id, one);
  await within("readwrite", ["messages"], (messages) => messages.put(one));
}

/** Changes a chat's record as it is now. `change` returns nothing. Returns the new record. */
export async function changeChat(id, change) {
  if (!database) {
    const chat = memory.chats.get(id);
    if (chat) change(chat);
    return chat;
  }
  return within("readwrite", ["chats"], (chats, got) => {
    const request = chats.get(id);
    request.onsuccess = () => {
      if (!request.result) return;
      change(request.result);
      chats.put(request.result);
      got.result = request.result;
    };
  });
}

/** Writes a whole chat: a new one, or an imported one. */
export async function saveChat(chat, messages = []) {
  if (!database) {
    memory.chats.set(chat.id, chat);
    for (const one of messages) memory.messages.set(one.id, one);
    return;
  }
  await within("readwrite", ["chats", "messages"], (chats, all) => {
    chats.put(chat);
    for (const one of messages) all.put(one);
  });
}

async function forgetDeleted() {
  const all = await within("readonly", ["chats"], (chats, got) => results(chats.getAll(), got));
  for (const chat of all.filter((c) => c.deleted && c.deleted < Date.now() - KEPT)) {
    await within("readwrite", ["chats", "messages"], (chats, messages) => {
      chats.delete(chat.id);
      const keys = messages.index("chat").getAllKeys(chat.id);
      keys.onsuccess = () => keys.result.forEach((key) => messages.delete(key));
    });
  }
}

/** Presets and other values that have a name. */
export async function thing(name) {
  if (!database) return memory.things.get(name)?.value;
  const found = await within("readonly", ["things"], (things, got) => {
    results(things.get(name), got);
  });
  return found?.value;
}

export async function putThing(name, value) {
  if (!database) return void memory.things.set(name, { name, value });
  await within("readwrite", ["things"], (things) => things.put({ name, value }));
}

/** The newest messages that hold the text, at most `most`. */
export async function findMessages(text, most) {
  const wanted = text.toLowerCase(),
    found = [];
  const holds = (one) => one.content.toLowerCase().includes(wanted);
  if (!database) return [...memory.messages.values()].filter(holds).slice(0, most);
  await within("readonly", ["messages"], (messages) => {
    const cursor = messages.openCursor();
    cursor.onsuccess = () => {
      const at = cursor.result;
      if (!at) return;
      if (holds(at.value)) found.push(at.value);
      at.continue();
    };
  });
  return found.sort((a, b) => b.at - a.at).slice(0, most);
}

/** Bytes that the browser keeps for this page, and may keep. */
export async function usage() {
  const told = await navigator.storage?.estimate?.();
  return told ? { used: told.usage ?? 0, most: told.quota ?? 0 } : null;
}
