// The drawer with the settings of the chat that is shown: system prompt, presets, samplers.

import { $, el, iconButton, textButton } from "./dom.js";
import { FIELDS, USUAL } from "./settings.js";
import { change, kept, on, say, state } from "./state.js";
import { putThing, thing } from "./store.js";
import { toast } from "./toast.js";
import { fixed, t } from "./words.js";

/** Shown at once; the others below "Sampling". */
const PLAIN = ["temperature", "max_tokens"];

export async function loadSettings() {
  state.usual = { ...USUAL, ...((await kept(() => thing("usual"))) ?? {}) };
  state.presets = (await kept(() => thing("presets"))) ?? [];
}

export function showDrawer() {
  on("chat", ({ other }) => {
    if (!other) return;
    keep();
    draw();
  });
  $("settings").addEventListener("click", () => toggleDrawer());
}

export function toggleDrawer(shows = $("drawer").hidden) {
  $("drawer").hidden = !shows;
  $("settings").setAttribute("aria-expanded", String(shows));
  if (shows) $("system").focus();
}

/** The chat's settings, with the usual value for what an older chat does not have. */
const settings = () => (state.chat.settings = { ...USUAL, ...state.chat.settings });

// Values that are not kept yet: `{ chat, values, timer }`.
let unkept = null;

function set(name, value) {
  const { chat } = state;
  settings()[name] = value;
  // A chat without messages is not kept yet.
  if (!state.chats.includes(chat)) return;
  clearTimeout(unkept?.timer);
  unkept = { chat, values: { ...chat.settings }, timer: setTimeout(keep, 300) };
}

function keep() {
  if (!unkept) return;
  const { chat, values, timer } = unkept;
  clearTimeout(timer);
  unkept = null;
  change(chat, (c) => (c.settings = { ...values }));
}

function draw() {
  const now = settings();
  const system = el("textarea", {
    id: "system",
    rows: "5",
    value: now.system,
    placeholder: t("systemHint"),
  });
  system.addEventListener("input", () => set("system", system.value));
  const rows = (names) => names.map((name) => field(name, now[name]));
  const sampling = el(
    "details",
    { id: "sampling" },
    el("summary", { text: t("sampling") }),
    rows(Object.keys(FIELDS).filter((name) => !PLAIN.includes(name))),
  );
  $("drawer").replaceChildren(
    el(
      "header",
      {},
      el("h2", { text: t("settings") }),
      iconButton("close", t("close"), () => toggleDrawer(false)),
    ),
    el(
      "div",
      { class: "field" },
      el("label", { for: "system", text: t("system") }),
      system,
      presets(system),
    ),
    ...rows(PLAIN),
    sampling,
    el(
      "div",
      { class: "row" },
      textButton(t("asUsual"), async () => {
        state.usual = { ...settings() };
        await kept(() => putThing("usual", state.usual));
        toast(t("usualKept"));
      }),
      textButton(t("reset"), () => {
        const { chat } = state;
        chat.settings = { ...USUAL };
        if (state.chats.includes(chat)) change(chat, (c) => (c.settings = { ...USUAL }));
        draw();
        say("settings");
      }),
    ),
  );
}

function field(name, value) {
  const { min, max, step } = FIELDS[name];
  const ranged = max !== undefined;
  const shown = ranged ? el("output", { for: name, text: fixed(Number(value), 2) }) : null;
  const input = el("input", {
    id: name,
    type: ranged ? "range" : "number",
    min,
    max,
    step,
    value,
    placeholder: ranged ? null : t(`${name}Hint`),
  });
  input.addEventListener("input", () => {
    if (!input.validity.valid) return;
    if (shown) shown.textContent = fixed(Number(input.value), 2);
    set(name, input.value === "" ? "" : Number(input.value));
  });
  return el(
    "div",
    { class: "field" },
    el("div", { class: "row" }, el("label", { for: name, text: t(name) }), shown),
    input,
    el("small", { text: t(`${name}Says`) }),
  );
}

function presets(system) {
  const choice = el(
    "select",
    { id: "presets", "aria-label": t("presets") },
    el("option", { value: "", text: t("presets") }),
    state.presets.map((preset, at) => el("option", { value: String(at), text: preset.name })),
  );
  const forget = iconButton(
    "trash",
    t("forgetPreset"),
    async () => {
      state.presets = state.presets.filter((_, at) => String(at) !== choice.value);
      await kept(() => putThing("presets", state.presets));
      draw();
    },
    { class: "small", disabled: true },
  );
  choice.addEventListener("change", () => {
    const preset = state.presets[Number(choice.value)];
    forget.disabled = choice.value === "";
    if (choice.value === "" || !preset) return;
    system.value = preset.system;
    set("system", preset.system);
  });
  const name = el("input", {
    id: "preset-name",
    "aria-label": t("presetName"),
    placeholder: t("presetName"),
    maxlength: "80",
  });
  const keep = textButton(t("keepPreset"), async () => {
    if (!name.value.trim() || !system.value.trim()) return;
    const others = state.presets.filter((p) => p.name !== name.value.trim());
    state.presets = [...others, { name: name.value.trim(), system: system.value }];
    await kept(() => putThing("presets", state.presets));
    draw();
  });
  return el(
    "div",
    { class: "presets" },
    el("div", { class: "row" }, choice, forget),
    el("div", { class: "row" }, name, keep),
  );
}
