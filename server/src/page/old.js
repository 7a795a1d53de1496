// Chats that earlier versions of the page kept in localStorage.

const KEY = "kjit.chats";

/** Takes them over once. `save(chat, messages)` writes one. */
export async function importOld(save) {
  let old;
  try {
    old = JSON.parse(localStorage.getItem(KEY) ?? "[]");
  } catch {
    return;
  }
  if (!Array.isArray(old)) return;
  for (const [at, one] of old.entries()) {
    if (!Array.isArray(one?.turns) || typeof one.id !== "string") continue;
    const turns = one.turns.filter((turn) => typeof turn?.content === "string");
    if (!turns.length) continue;
    const time = Date.now() - 1000 * (at + 1);
    const messages = turns.map((turn, n) => ({
      id: `${one.id}.${n}`,
      chat: one.id,
      parent: n ? `${one.id}.${n - 1}` : null,
      role: turn.role === "user" ? "user" : "assistant",
      content: turn.content,
      reasoning: turn.reasoning ?? "",
      files: [],
      at: time + n,
      state: "done",
    }));
    const title = messages[0].content.slice(0, 60);
    await save(
      {
        id: one.id,
        title,
        created: time,
        changed: time,
        pinned: false,
        folder: "",
        deleted: 0,
        settings: {},
        head: messages.at(-1).id,
        model: "",
      },
      messages,
    );
  }
  localStorage.removeItem(KEY);
}
