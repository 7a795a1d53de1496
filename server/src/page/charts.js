// Pictures with axes and units, drawn in SVG at the size that they have on the screen.

import { count, fixed } from "./words.js";

const LARGEST_CELL = 44;
const LEFT = 48,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 22;

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const text = (content, attributes) => {
  const element = svg("text", attributes);
  element.textContent = content;
  return element;
};

/** An axis from 0: its end and up to five steps that are 1, 2 or 5 times a power of ten. */
export function axis(most, whole = false) {
  const top = Math.max(most, whole ? 4 : 1);
  const raw = top / 4,
    power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].find((n) => n * power >= raw) * power;
  if (whole) step = Math.max(1, Math.round(step));
  const end = Math.ceil(top / step - 1e-9) * step;
  const ticks = Array.from({ length: Math.round(end / step) + 1 }, (_, n) => n * step);
  return { end, ticks, digits: step < 1 ? Math.min(3, Math.ceil(-Math.log10(step))) : 0 };
}

function frame(element, label) {
  const width = Math.max(220, element.clientWidth),
    height = Math.max(90, element.clientHeight);
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  element.replaceChildren();
  return { width, height, right: width - RIGHT, bottom: height - BOTTOM };
}

function vertical(element, { right, bottom }, scale) {
  const y = (value) => bottom - ((bottom - TOP) * value) / scale.end;
  for (const tick of scale.ticks) {
    element.append(
      svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(tick), y2: y(tick) }),
      text(scale.digits && tick ? fixed(tick, scale.digits) : count(tick), {
        class: "tick end",
        x: LEFT - 6,
        y: y(tick) + 4,
      }),
    );
  }
  return y;
}

/**
 * Areas on top of each other over the last `seconds`. `times` are seconds before now (0 is now),
 * `series` are `{ name, values }`, lowest first.
 */
export function areas(element, label, times, series, { seconds, whole = false }) {
  const size = frame(element, label);
  const sums = times.map((_, at) => series.reduce((n, one) => n + one.values[at], 0));
  const y = vertical(element, size, axis(Math.max(0, ...sums), whole));
  const x = (time) => size.right + ((size.right - LEFT) * time) / seconds;
  const step = size.width < 360 ? seconds / 2 : seconds / 4;
  for (let back = seconds; back >= 0; back -= step) {
    const place = back === seconds ? "tick" : back ? "tick middle" : "tick end";
    element.append(
      text(back ? `−${count(back)} s` : "0 s", { class: place, x: x(-back), y: size.bottom + 16 }),
    );
  }
  let below = times.map(() => 0);
  const lines = [];
  for (const { name, values } of series) {
    const above = below.map((n, at) => n + values[at]);
    const points = (list) => list.map((n, at) => `${x(times[at]).toFixed(1)},${y(n).toFixed(1)}`);
    if (times.length > 1) {
      const around = [...points(above), ...points(below).reverse()].join(" ");
      element.append(svg("polygon", { class: `area ${name}`, points: around }));
      lines.unshift(svg("polyline", { class: `line ${name}`, points: points(above).join(" ") }));
    }
    below = above;
  }
  // The lowest line lies on top: a series of zeros does not hide the one below it.
  element.append(...lines);
}

/** Columns for a histogram: bounds in seconds, one count more than bounds. */
export function columns(element, label, { bounds, counts }, describe) {
  const size = frame(element, label);
  const y = vertical(element, size, axis(Math.max(0, ...counts), true));
  const wide = (size.right - LEFT) / counts.length;
  const room = Math.ceil(46 / wide);
  counts.forEach((n, at) => {
    const x = LEFT + at * wide;
    const title = svg("title");
    title.textContent = describe(bounds[at], n);
    element.append(
      svg(
        "rect",
        {
          class: "bar",
          x: x + 1,
          width: Math.max(1, wide - 2),
          y: y(n),
          height: size.bottom - y(n),
          rx: 1.5,
        },
        title,
      ),
    );
    // A column's upper bound stands below its right edge.
    if (at < bounds.length && at % room === room - 1) {
      element.append(
        text(short(bounds[at]), { class: "tick middle", x: x + wide, y: size.bottom + 16 }),
      );
    }
  });
}

export function short(seconds) {
  return seconds < 1 ? `${count(Math.round(seconds * 1000))} ms` : `${count(seconds)} s`;
}

/** A bar of parts with an axis below it. `parts` are `{ name, value }`. */
export function bar(element, label, parts, most, format) {
  const size = frame(element, label),
    left = 2,
    right = size.right;
  const scale = axis(most),
    x = (value) => left + ((right - left) * Math.min(value, most)) / most;
  const height = size.bottom - TOP;
  element.append(
    svg("rect", { class: "room", x: left, y: TOP, width: right - left, height, rx: 3 }),
  );
  let at = 0;
  for (const { name, value } of parts) {
    const width = Math.max(0, x(at + value) - x(at));
    element.append(svg("rect", { class: `part ${name}`, x: x(at), y: TOP, width, height }));
    at += value;
  }
  const ticks = scale.ticks.filter((tick) => x(tick) < right - 90);
  for (const tick of [...ticks, most]) {
    const place = tick === 0 ? "tick" : tick === most ? "tick end" : "tick middle";
    element.append(text(format(tick), { class: place, x: x(tick), y: size.bottom + 16 }));
  }
}

/** Cells, each `per` things. `parts` are `{ name, value }`; what is left of `all` is free. */
export function cells(element, label, parts, all) {
  const size = frame(element, label);
  const per = Math.max(1, Math.ceil(all / 512)),
    number = Math.ceil(all / per);
  // In one row if the cells are not too small for it.
  const square = Math.ceil(Math.sqrt((number * size.width) / size.height));
  const across =
    number * LARGEST_CELL <= size.width ? number : Math.min(number, Math.max(1, square));
  const down = Math.ceil(number / across),
    edge = Math.min(size.width / across, size.height / down, LARGEST_CELL);
  const ends = [];
  parts.reduce((sum, { name, value }) => {
    ends.push({ name, end: sum + value });
    return sum + value;
  }, 0);
  for (let at = 0; at < number; at += 1) {
    const name = ends.find(({ end }) => at * per < end)?.name ?? "free";
    element.append(
      svg("rect", {
        class: `cell ${name}`,
        x: (at % across) * edge + 1,
        y: Math.floor(at / across) * edge + 1,
        width: Math.max(1, edge - 2),
        height: Math.max(1, edge - 2),
        rx: Math.min(3, edge / 5),
      }),
    );
  }
  return per;
}
