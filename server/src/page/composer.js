// The field for a message: files, sending, stopping, and how much of the context is used.

import { send, stop } from "./answer.js";
import { $, el, iconButton } from "./dom.js";
import { readFile } from "./files.js";
import { icon } from "./icons.js";
import { toEnd } from "./conversation.js";
import { draft, keepDraft } from "./preferences.js";
import { status } from "./status.js";
import { isBusy, on, shown, state } from "./state.js";
import { toast } from "./toast.js";
import { count, t } from "./words.js";

/** Files of a message, and characters of all. A picture counts with its data URL. */
const MOST_FILES = 20,
  MOST_TEXT = 7_000_000;
let files = [];

export function showComposer() {
  const field = $("text");
  field.placeholder = t("placeholder");
  $("send").title = t("send");
  $("stop").title = t("stop");
  field.addEventListener("input", () => {
    fit();
    keepDraft(state.chat.id, field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  field.addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    attach(pasted);
  });
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("stop").addEventListener("click", () => stop());
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    await attach([...$("file").files]);
    $("file").value = "";
  });
  dropping();
  on("chat", ({ other }) => {
    if (!other) return;
    field.value = draft(state.chat.id);
    files = [];
    showFiles();
    fit();
  });
  for (const name of ["chat", "busy", "status"]) on(name, show);
  on("message", context);
}

async function submit() {
  const field = $("text"),
    text = field.value.trim();
  if ((!text && !files.length) || isBusy(state.chat.id)) return;
  const given = files,
    { id } = state.chat;
  field.value = "";
  files = [];
  keepDraft(id, "");
  showFiles();
  fit();
  toEnd();
  await send(text, given);
}

function fit() {
  const field = $("text");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, innerHeight * 0.4)}px`;
  $("send").disabled = !field.value.trim() && !files.length;
}

function show() {
  const busy = isBusy(state.chat.id);
  $("stop").hidden = !busy;
  $("send").hidden = busy;
  const elsewhere = state.elsewhere.has(state.chat.id);
  $("ask-note").textContent = elsewhere ? t("otherTab") : status.error;
  $("ask-note").hidden = !elsewhere && !status.error;
  context();
}

/** The thin bar: tokens of the branch, as the server counted them last. */
function context() {
  const last = shown().findLast((m) => m.stats?.context);
  const used = last?.stats.context ?? 0,
    most = status.of(state.chat.model)?.slots?.context ?? 0;
  const share = most ? Math.min(1, used / most) : 0;
  const text = used && most ? t("contextUsed", { used, most }) : "";
  $("context").hidden = !text;
  $("context-bar").style.width = `${100 * share}%`;
  $("context").classList.toggle("full", share > 0.85);
  $("context-text").textContent = text;
  const rate = state.running.get(state.chat.id)?.message?.stats?.rate;
  $("now").textContent = rate ? t("rate", { rate: rate.toFixed(1) }) : "";
}

async function attach(given) {
  for (const file of given) {
    try {
      const read = await readFile(file, status.of(state.chat.model)?.model?.vision);
      const size = (f) => f.text.length + (f.image?.length ?? 0);
      const all = files.reduce((n, f) => n + size(f), size(read));
      if (files.length >= MOST_FILES || all > MOST_TEXT)
        throw new Error(t("tooMuch", { most: count(MOST_TEXT) }));
      files.push(read);
    } catch (error) {
      toast(error.message, null, 8);
    }
  }
  showFiles();
  fit();
  $("text").focus();
}

function showFiles() {
  $("attached").replaceChildren(
    ...files.map((file) =>
      el(
        "span",
        { class: "chip" },
        file.image ? el("img", { src: file.image, alt: "" }) : icon("file"),
        el("span", { text: file.name }),
        file.image ? null : el("small", { text: t("characters", { n: file.text.length }) }),
        iconButton(
          "close",
          t("removeFile", { name: file.name }),
          () => {
            files = files.filter((f) => f !== file);
            showFiles();
            fit();
          },
          { class: "small" },
        ),
      ),
    ),
  );
  $("attached").hidden = !files.length;
}

function dropping() {
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  const mark = (shows) => ($("drop").hidden = !shows);
  addEventListener("dragenter", (event) => {
    if (carries(event)) mark((depth += 1) > 0);
  });
  addEventListener("dragleave", (event) => {
    if (carries(event)) mark((depth -= 1) > 0);
  });
  addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    depth = 0;
    mark(false);
    if (!carries(event)) return;
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  });
}
