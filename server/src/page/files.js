// Files that a message carries: texts. Nothing else can be shown to the models that are served.

import { bytes, t } from "./words.js";

const LARGEST = 4 << 20;

/** Reads a file. Throws an error whose message says why it cannot be used. */
export async function readFile(file) {
  const name = file.name || "file";
  if (file.type.startsWith("image/")) throw new Error(t("noImages", { name }));
  if (file.type === "application/pdf") throw new Error(t("noPdf", { name }));
  if (file.size > LARGEST) throw new Error(t("tooLarge", { name, most: bytes(LARGEST) }));
  const raw = new Uint8Array(await file.arrayBuffer());
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    throw new Error(t("noText", { name }));
  }
  if (text.includes("\0")) throw new Error(t("noText", { name }));
  return { name, text };
}

/** The text that the model gets: each file in a fence that its text does not close. */
export function withFiles(typed, files) {
  const parts = (files ?? []).map(({ name, text }) => {
    let longest = 2;
    for (const run of text.matchAll(/`{3,}/g)) longest = Math.max(longest, run[0].length);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}\n\n`;
  });
  return parts.join("") + typed;
}
