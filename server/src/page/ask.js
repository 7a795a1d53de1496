// Requests to the server that the page came from.

import { key } from "./preferences.js";
import { t } from "./words.js";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const headers = () => ({
  "content-type": "application/json",
  ...(key() ? { authorization: `Bearer ${key()}` } : {}),
});

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers() });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(t("noServer"), 0);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const why = told?.error?.message ?? told?.error ?? t("serverSays", { status: response.status });
  const hint = response.status === 401 ? ` ${t("keyHint")}` : "";
  throw new Refused(String(why) + hint, response.status);
}

export const get = async (path) => (await ask(path, {})).json();

export async function post(path, body, signal) {
  return (await ask(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** The events of a stream, as parsed JSON. An `error` in one is thrown. */
export async function* events(path, body, signal) {
  const response = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Refused(t("streamBroke"), 0);
      held += value;
      const lines = held.split("\n");
      held = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(event.error.message ?? String(event.error), 500);
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new Refused(t("streamBroke"), 0);
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}
