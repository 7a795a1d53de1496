// What belongs to the browser: theme, contrast, language, key, all chats.

import { dialog, el, menuItem } from "./dom.js";
import { askForFiles, exportAll } from "./exchange.js";
import { showKeys } from "./keys.js";
import { appear, key, preference, prefer, setKey } from "./preferences.js";
import { look } from "./status.js";
import { usage } from "./store.js";
import { bytes, LANGUAGES, t } from "./words.js";

export function generalMenu() {
  return [
    menuItem("gear", t("general"), showGeneral),
    menuItem("keyboard", t("keys"), showKeys),
    el("hr"),
    menuItem("upload", t("import"), askForFiles),
    menuItem("download", t("exportAll"), exportAll),
  ];
}

async function showGeneral() {
  const room = await usage().catch(() => null);
  const field = el("input", { id: "key", type: "password", autocomplete: "off", value: key() });
  let timer = null;
  field.addEventListener("input", () => {
    setKey(field.value.trim());
    clearTimeout(timer);
    timer = setTimeout(look, 300);
  });
  dialog(
    t("general"),
    [
      choice(
        "theme",
        t("theme"),
        { "": t("automatic"), light: t("light"), dark: t("dark") },
        appear,
      ),
      choice("contrast", t("contrast"), { "": t("automatic"), more: t("high") }, appear),
      choice("language", t("language"), { "": t("automatic"), ...LANGUAGES }, () =>
        location.reload(),
      ),
      el(
        "div",
        { class: "field" },
        el("label", { for: "key", text: t("key") }),
        field,
        el("small", { text: t("keySays") }),
      ),
      room
        ? el("p", {
            class: "quiet",
            text: t("storage", { used: bytes(room.used), most: bytes(room.most) }),
          })
        : null,
      el("p", { class: "quiet", text: t("privacy") }),
    ].filter(Boolean),
  );
}

function choice(name, label, words, then) {
  const field = el(
    "select",
    { id: name },
    Object.entries(words).map(([value, text]) =>
      el("option", { value, text, selected: value === preference(name) }),
    ),
  );
  field.addEventListener("change", () => {
    prefer(name, field.value);
    then();
  });
  return el("div", { class: "field" }, el("label", { for: name, text: label }), field);
}
