// The button with the model's name: which models are served, their state, and another choice.

import { post } from "./ask.js";
import { $, el, menu, menuItem } from "./dom.js";
import { icon } from "./icons.js";
import { look, status } from "./status.js";
import { change, on, state } from "./state.js";
import { toast } from "./toast.js";
import { t } from "./words.js";

const WORDS = {
  ready: "modelReady",
  loading: "modelLoading",
  unloaded: "modelUnloaded",
  "short of memory": "modelShort",
  reopening: "modelReopening",
  stopping: "modelStopping",
  ended: "modelEnded",
};

export function showPicker() {
  menu($("model"), items, t("chooseModel"));
  for (const name of ["status", "chat"]) on(name, draw);
}

const chosen = () => state.chat?.model || status.models()[0]?.name || "";

function draw() {
  const name = chosen(),
    is = status.error && !status.now ? "away" : status.modelState(name);
  const text = is === "away" ? t("noServer") : name || t("lookForServer");
  const states = status.models().map((m) => [m.name, m.state, m.running + m.waiting]);
  const key = JSON.stringify([text, is, states]);
  if ($("model").shown === key) return;
  $("model").shown = key;
  $("model").refresh();
  const label = `${t("chooseModel")}: ${text}, ${stateWord(is)}`;
  $("model").replaceChildren(dot(is), el("span", { class: "name", text }), icon("open"));
  $("model").setAttribute("aria-label", label);
  $("model").title = label;
}

const stateWord = (is) => (WORDS[is] ? t(WORDS[is]) : is === "away" ? "" : is);
const dot = (is) => el("span", { class: `dot ${is.replaceAll(" ", "-") || "unknown"}` });

function items() {
  const models = status.models(),
    rows = models.map((model) => {
      const current = model.name === chosen();
      const asked = model.running + model.waiting;
      const says = [stateWord(model.state), asked ? t("requestsNow", { n: asked }) : ""]
        .filter(Boolean)
        .join(" · ");
      const choice = el(
        "button",
        {
          type: "button",
          role: "menuitemradio",
          "aria-checked": String(current),
          class: "model",
          onclick: () => choose(model.name),
        },
        dot(model.state),
        el("span", {}, el("b", { text: model.name }), el("small", { text: says })),
        current ? icon("check") : null,
      );
      // One model alone is never unloaded here: the chat would have none.
      const moves =
        models.length > 1 && { ready: ["unload", 0], unloaded: ["load", undefined] }[model.state];
      return [
        choice,
        moves
          ? menuItem(null, t(moves[0]), () => move(model.name, moves[1]), { class: "move" })
          : null,
      ];
    });
  const live = menuItem("chart", t("live"), () => {
    location.hash = "#live";
  });
  return [...rows, el("hr"), live];
}

function choose(name) {
  const { chat } = state;
  chat.model = name;
  if (state.chats.includes(chat)) change(chat, (c) => (c.model = name));
  status.past = [];
  draw();
  look();
}

/** Loads a model, or unloads it. */
async function move(model, keep_alive) {
  try {
    const asked = post("api/generate", {
      model,
      stream: false,
      ...(keep_alive === 0 ? { keep_alive } : {}),
    });
    setTimeout(look, 200);
    await asked;
  } catch (error) {
    toast(error.message, null, 8);
  }
  look();
}
