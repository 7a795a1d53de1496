// Short notices at the lower edge, with one thing to do about them.

import { $, el, textButton } from "./dom.js";

/** Shows a notice. `action` is `{ label, run }`. */
export function toast(text, action = null, seconds = action ? 10 : 5) {
  const note = el("div", { class: "toast" }, el("span", { text }));
  const gone = () => note.remove();
  if (action) {
    note.append(
      textButton(action.label, () => {
        gone();
        action.run();
      }),
    );
  }
  $("toasts").append(note);
  while ($("toasts").children.length > 3) $("toasts").firstChild.remove();
  setTimeout(gone, seconds * 1000);
}
