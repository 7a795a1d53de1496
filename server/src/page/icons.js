// Icons on a grid of 24, drawn as strokes in the text's colour.

const PATHS = {
  menu: "M4 6h16M4 12h16M4 18h10",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 13l4 4 10-10",
  edit: "M4 20h4L19 9l-4-4L4 16v4ZM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  open: "M7 10l5 5 5-5",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3-1-6ZM12 15v5",
  folder: "M3 7a2 2 0 0 1 2-2h4l2 2h8a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7Z",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  sliders: "M4 7h9M19 7h1M4 17h1M11 17h9M16 4.5v5M8 14.5v5",
  chart: "M4 4v16h16M8 15l3-4 3 2 5-6",
  close: "M6 6l12 12M18 6L6 18",
  attach:
    "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3 3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4L14 7.5",
  keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M8 14h8",
  gear:
    "M12 15.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM12 3v2.5M12 18.5V21M3 12h2.5M18.5 12H21" +
    "M5.6 5.6l1.8 1.8M16.6 16.6l1.8 1.8M18.4 5.6l-1.8 1.8M7.4 16.6l-1.8 1.8",
  play: "M8 5l11 7-11 7V5Z",
  chat: "M4 5h16v11H10l-5 4v-4H4V5Z",
  file: "M6 3h8l4 4v14H6V3ZM14 3v4h4",
};

export function icon(name) {
  const make = (tag) => document.createElementNS("http://www.w3.org/2000/svg", tag);
  const svg = make("svg"),
    path = make("path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("i");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
