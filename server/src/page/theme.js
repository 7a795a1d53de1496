// Runs before the page is drawn, so that a dark page is never white at first.

"use strict";
globalThis.kjitAppear = () => {
  const root = document.documentElement;
  for (const name of ["theme", "contrast"]) {
    let value = null;
    try {
      value = localStorage.getItem(`kjit.${name}`);
    } catch {
      // Storage is forbidden: the system's choice counts.
    }
    if (value) root.dataset[name] = value;
    else delete root.dataset[name];
  }
};
globalThis.kjitAppear();
