// Chats as files: JSON with all branches, Markdown with the branch that is shown; and back.

import { dialog, download, el, textButton } from "./dom.js";
import { isPicture } from "./files.js";
import { sound } from "./settings.js";
import { kept, reloadChats, state } from "./state.js";
import { allChats, messagesOf, newId, saveChat } from "./store.js";
import { toast } from "./toast.js";
import { path } from "./tree.js";
import { t } from "./words.js";

const FORM = "kjit chats",
  VERSION = 1;
/** Limits of a file that is read: bytes, chats, messages of a chat, characters of a name. */
const MOST_BYTES = 200_000_000,
  MOST_CHATS = 10_000,
  MOST_MESSAGES = 100_000,
  MOST_NAME = 200;
// Stands before each message of a Markdown file, so that headings inside of one do not split it.
const mark = (role) => `<!-- kjit: ${role} -->`;

const fileName = (title) =>
  title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 60) || "chat";

export async function exportChat(chat, as) {
  const messages = (await kept(() => messagesOf(chat.id))) ?? [];
  if (as === "json") {
    return download(
      `${fileName(chat.title)}.json`,
      "application/json",
      asJson([{ chat, messages }]),
    );
  }
  const branch = path(new Map(messages.map((m) => [m.id, m])), chat.head);
  download(`${fileName(chat.title)}.md`, "text/markdown", asMarkdown(chat, branch));
}

export async function exportAll() {
  const all = [];
  for (const chat of (await kept(allChats)) ?? [])
    all.push({ chat, messages: await messagesOf(chat.id) });
  download("kjit-chats.json", "application/json", asJson(all));
}

export function asJson(chats) {
  return `${JSON.stringify({ form: FORM, version: VERSION, chats }, null, 1)}\n`;
}

export function asMarkdown(chat, branch) {
  const parts = branch.map((one) => {
    const files = (one.files ?? []).map((f) => `\n\n> ${f.name}`).join("");
    const who = one.role === "user" ? t("you") : t("model");
    return `${mark(one.role)}\n## ${who}\n\n${one.content}${files}\n`;
  });
  return `# ${chat.title}\n\n${parts.join("\n")}`;
}

/** Reads a file of either kind: `[{ chat, messages }]` with new ids. Throws what is wrong. */
export function chatsOf(name, text) {
  if (text.trimStart().startsWith("{")) return fromJson(name, text);
  const made = fromMarkdown(text);
  if (!made) throw new Error(t("noExport", { name }));
  return [made];
}

function fromJson(name, text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error(t("noExport", { name }));
  }
  if (read?.form !== FORM || !Array.isArray(read.chats)) throw new Error(t("noExport", { name }));
  if (read.version !== VERSION)
    throw new Error(t("newerExport", { name, version: String(read.version) }));
  if (read.chats.length > MOST_CHATS)
    throw new Error(t("tooManyChats", { name, most: MOST_CHATS }));
  return read.chats.map((one, at) => {
    const made = checked(one);
    if (!made) throw new Error(t("wrongChat", { name, n: at + 1 }));
    return made;
  });
}

const STATES = new Set(["done", "cut", "stopped", "interrupted", "error"]);
const isText = (value) => typeof value === "string";
const time = (value) => (Number.isFinite(value) ? value : Date.now());

/** A chat and its messages, each field of its kind, with new ids. `null` if they are no chat. */
function checked(given) {
  const { chat, messages } = given ?? {};
  if (!isText(chat?.title) || !Array.isArray(messages) || messages.length > MOST_MESSAGES)
    return null;
  const id = newId(),
    ids = new Map(messages.map((m) => [m?.id, newId()]));
  const made = [];
  for (const m of messages) {
    if (!isText(m?.id) || !isText(m.content) || !["user", "assistant"].includes(m.role))
      return null;
    if (m.parent != null && !ids.has(m.parent)) return null;
    const files = Array.isArray(m.files)
      ? m.files.filter((f) => isText(f?.name) && isText(f.text))
      : [];
    made.push({
      id: ids.get(m.id),
      chat: id,
      parent: m.parent == null ? null : ids.get(m.parent),
      role: m.role,
      content: m.content,
      reasoning: isText(m.reasoning) ? m.reasoning : "",
      at: time(m.at),
      files: files.map((f) => ({
        name: f.name.slice(0, MOST_NAME),
        text: f.text,
        ...(isPicture(f.image) ? { image: f.image } : {}),
      })),
      state: STATES.has(m.state) ? m.state : "interrupted",
      error: isText(m.error) ? m.error : "",
    });
  }
  return {
    chat: {
      id,
      title: chat.title.slice(0, MOST_NAME),
      created: time(chat.created),
      changed: time(chat.changed),
      pinned: chat.pinned === true,
      folder: isText(chat.folder) ? chat.folder.slice(0, MOST_NAME) : "",
      deleted: 0,
      settings: sound(chat.settings),
      model: isText(chat.model) ? chat.model : "",
      head: ids.get(chat.head) ?? made.at(-1)?.id ?? null,
    },
    messages: made,
  };
}

function fromMarkdown(text) {
  const pieces = text.replaceAll("\r\n", "\n").split(/^<!-- kjit: (user|assistant) -->\n/m);
  if (pieces.length < 3) return null;
  const id = newId(),
    now = Date.now(),
    messages = [];
  for (let at = 1; at + 1 < pieces.length; at += 2) {
    const content = pieces[at + 1].replace(/^## .*\n+/, "").trim();
    messages.push({
      id: newId(),
      chat: id,
      parent: messages.at(-1)?.id ?? null,
      role: pieces[at],
      content,
      reasoning: "",
      files: [],
      at: now + at,
      state: "done",
    });
  }
  const title = /^# (.*)/.exec(pieces[0])?.[1] ?? messages[0].content;
  const chat = {
    id,
    title: title.slice(0, MOST_NAME),
    created: now,
    changed: now,
    pinned: false,
    folder: "",
    deleted: 0,
    settings: { ...state.usual },
    model: "",
    head: messages.at(-1).id,
  };
  return { chat, messages };
}

export async function importFiles(files) {
  let chats = 0;
  for (const file of files) {
    try {
      if (file.size > MOST_BYTES) throw new Error(t("noExport", { name: file.name }));
      for (const one of chatsOf(file.name, await file.text())) {
        await saveChat(one.chat, one.messages);
        chats += 1;
      }
    } catch (error) {
      toast(error.message, null, 10);
    }
  }
  await reloadChats();
  if (chats) toast(t("imported", { n: chats }));
}

export function askForFiles() {
  const field = el("input", {
    type: "file",
    multiple: true,
    accept: ".json,.md",
    "aria-label": t("import"),
  });
  const box = dialog(t("import"), [
    el("p", { text: t("importHint") }),
    field,
    el(
      "div",
      { class: "row end" },
      textButton(
        t("import"),
        async () => {
          const files = [...field.files];
          box.close();
          await importFiles(files);
        },
        { class: "main" },
      ),
    ),
  ]);
}
