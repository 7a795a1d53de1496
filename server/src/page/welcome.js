// What an empty chat shows: what runs here, and things to try.

import { send } from "./answer.js";
import { el } from "./dom.js";
import { status } from "./status.js";
import { on, state } from "./state.js";
import { bytes, count, list, t } from "./words.js";

let line = null;
on("status", () => line?.isConnected && (line.textContent = runsHere()));

export function welcome() {
  line = el("p", { class: "runs", text: runsHere() });
  const cards = list("try").map(([title, text]) =>
    el(
      "button",
      { type: "button", onclick: () => send(text, []) },
      el("strong", { text: title }),
      el("span", { text }),
    ),
  );
  return el(
    "section",
    { class: "welcome" },
    el("h2", { text: t("welcome") }),
    line,
    el("div", { class: "cards" }, cards),
  );
}

function runsHere() {
  const now = status.of(state.chat?.model);
  if (!now?.device) return now ? t("notLoadedYet", { model: now.server.name }) : "";
  return t("runsHere", {
    model: now.server.name,
    device: now.device.name,
    context: count(now.slots.context),
    size: bytes(now.model.weights_bytes),
  });
}
