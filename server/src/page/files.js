// Files that a message carries: texts, and pictures if the model reads them.

import { bytes, t } from "./words.js";

const LARGEST = 4 << 20;
const PICTURES = ["image/png", "image/jpeg", "image/webp"];

/**
 * Reads a file: `{ name, text }`, and `image`, a data URL, if it is a picture. `sees` says whether
 * the model reads pictures. Throws an error whose message says why the file cannot be used.
 */
export async function readFile(file, sees) {
  const name = file.name || "file";
  if (file.type.startsWith("image/")) {
    if (!sees) throw new Error(t("noImages", { name }));
    if (!PICTURES.includes(file.type)) throw new Error(t("pictureTypes", { name }));
    if (file.size > LARGEST) throw new Error(t("tooLarge", { name, most: bytes(LARGEST) }));
    return { name, text: "", image: await dataUrl(file) };
  }
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

function dataUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Whether a text is a picture that `readFile` made. */
export const isPicture = (url) =>
  typeof url === "string" && PICTURES.some((type) => url.startsWith(`data:${type};base64,`));

/** The content of a message for the server: a text, or pictures and a text. */
export function contentOf(typed, files) {
  const pictures = (files ?? []).filter((file) => file.image);
  const text = withFiles(
    typed,
    (files ?? []).filter((file) => !file.image),
  );
  if (!pictures.length) return text;
  const parts = pictures.map(({ image }) => ({ type: "image_url", image_url: { url: image } }));
  return text ? [...parts, { type: "text", text }] : parts;
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
