// Several tabs with the same chats: one of them at a time writes an answer into a chat, and the
// others are told of each change.

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("kjit") : null;

/** Tells the other tabs. */
export function tell(news) {
  channel?.postMessage(news);
}

export function whenTold(run) {
  channel?.addEventListener("message", (event) => run(event.data));
}

const lockOf = (chat) => `kjit.chat.${chat}`;
// Browsers offer locks only to pages of this machine or by HTTPS. Elsewhere a message that grew
// within the last seconds counts as being written.
const BEAT = 5000;

/** Runs `work` as the one writer of the chat. Returns whether it could. */
export async function asWriter(chat, work) {
  if (!navigator.locks) {
    await work();
    return true;
  }
  return navigator.locks.request(lockOf(chat), { ifAvailable: true }, async (lock) => {
    if (!lock) return false;
    await work();
    return true;
  });
}

/** Whether a tab writes into the chat. `last` is the message that would be written. */
export async function hasWriter(chat, last) {
  if (!navigator.locks) return last?.state === "writing" && Date.now() - (last.beat ?? 0) < BEAT;
  const held = (await navigator.locks.query()).held;
  return held.some((lock) => lock.name === lockOf(chat));
}
