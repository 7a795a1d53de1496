// The page's words in the reader's language. English is complete; a test holds the others to it.

import en from "./words/en.js";

export const LANGUAGES = {
  en: "English",
  de: "Deutsch",
  fr: "Français",
  es: "Español",
  zh: "中文",
  ja: "日本語",
};

let words = en;
let numbers = new Intl.NumberFormat("en");
export let language = "en";

/** Chooses the language: the one that was set, else the first of the browser's that is here. */
export async function chooseLanguage(set) {
  const wanted = [set, ...(navigator.languages ?? [])].filter(Boolean);
  language = wanted.map((name) => name.split("-")[0]).find((name) => name in LANGUAGES) ?? "en";
  if (language !== "en") {
    try {
      words = { ...en, ...(await import(`./words/${language}.js`)).default };
    } catch (error) {
      console.error(`the words of ${language} cannot be read: ${error.message}`);
      language = "en";
    }
  }
  numbers = new Intl.NumberFormat(language);
  document.documentElement.lang = language;
}

/** A word or sentence. `{name}` in it stands for a value. */
export function t(name, values = {}) {
  const text = words[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (all, key) => {
    const value = values[key];
    return value === undefined ? all : typeof value === "number" ? count(value) : value;
  });
}

/** A list of texts. */
export const list = (name) => words[name];

export const count = (value) => numbers.format(value);

/** A number with so many digits after the point. */
export function fixed(value, digits) {
  return value.toLocaleString(language, {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  const whole = at < 3 || value >= 100 || Number.isInteger(value);
  return `${fixed(value, whole ? 0 : 1)} ${units[at]}`;
}
