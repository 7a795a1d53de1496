// What the server does: asked once a second while somebody looks, and kept for three minutes.

import { get } from "./ask.js";
import { say, state } from "./state.js";
import { t } from "./words.js";

/** Milliseconds between two looks: at the live view, and at a chat. */
const LIVE = 1000,
  CHAT = 2500;
const SAMPLES = 180;

export const status = {
  now: null,
  error: "",
  past: [],
  live: false,
  /** The state of a model, if the last look was at this one. */
  of(model) {
    return this.now && (!model || this.now.server.name === model) ? this.now : null;
  },
  models() {
    return this.now?.models ?? [];
  },
  /** `ready`, `loading`, `unloaded`, or `""` if it is not known. */
  modelState(model) {
    const name = model || this.models()[0]?.name;
    return this.models().find((m) => m.name === name)?.state ?? "";
  },
};

let timer = null;

export async function look() {
  clearTimeout(timer);
  if (!document.hidden) await ask();
  timer = setTimeout(look, status.live ? LIVE : CHAT);
}

async function ask() {
  const model = state.chat?.model;
  try {
    status.now = await get(`status${model ? `?model=${encodeURIComponent(model)}` : ""}`);
    status.error = "";
    remember(status.now);
  } catch (error) {
    if (error.status === 404 && model) {
      // The model that the chat was held with is not served any more.
      status.now = await get("status").catch(() => null);
      status.error = t("modelGone", { model });
    } else {
      status.error = error.message;
      status.now = error.status === 0 ? null : status.now;
    }
  }
  say("status");
}

function remember(now) {
  if (!now.device) return;
  const last = status.past.at(-1);
  // Another model, or the server was started again.
  if (last && (last.model !== now.server.name || last.generated > now.tokens.generated))
    status.past = [];
  status.past.push({
    model: now.server.name,
    at: performance.now() / 1000,
    generated: now.tokens.generated,
    prompt: now.tokens.prompt - now.tokens.cached,
    running: now.slots.running,
    prefilling: now.slots.prefilling,
    waiting: now.queue.waiting,
    tokens: now.slots.tokens,
  });
  if (status.past.length > SAMPLES) status.past.shift();
}

document.addEventListener("visibilitychange", () => document.hidden || look());
