// What belongs to this browser and not to a chat: appearance, language, the API key.

const read = (store, name) => {
  try {
    return store.getItem(name);
  } catch {
    // The browser forbids storage: the page works, and forgets.
    return null;
  }
};

const write = (store, name, value) => {
  try {
    if (value) store.setItem(name, value);
    else store.removeItem(name);
  } catch {
    // As above.
  }
};

export const preference = (name) => read(localStorage, `kjit.${name}`) ?? "";
export const prefer = (name, value) => write(localStorage, `kjit.${name}`, value);

// The key and unsent texts are forgotten with the tab.
export const key = () => read(sessionStorage, "kjit.key") ?? "";
export const setKey = (value) => write(sessionStorage, "kjit.key", value);
export const draft = (chat) => read(sessionStorage, `kjit.draft.${chat}`) ?? "";
export const keepDraft = (chat, text) => write(sessionStorage, `kjit.draft.${chat}`, text);

/** Applies theme and contrast. `theme.js` does it before the first paint. */
export function appear() {
  globalThis.kjitAppear();
}
