// The live view: what the server does, in pictures with axes and units.

import { areas, bar, cells, columns, short } from "./charts.js";
import { el } from "./dom.js";
import { on } from "./state.js";
import { status } from "./status.js";
import { bytes, count, fixed, t } from "./words.js";

/** Seconds that the curves show. */
const SECONDS = 120;
let place = null;
const figures = {};

export function showLive(root) {
  if (place) return draw();
  place = root;
  const figure = (name, tall = "") => {
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const value = el("b"),
      legend = el("p", { class: "legend" });
    const box = el(
      "figure",
      { class: `panel ${tall}`, id: `live-${name}` },
      el("figcaption", {}, el("h3", { text: t(`live_${name}`) }), value),
      picture,
      legend,
    );
    figures[name] = { box, picture, value, legend };
    return box;
  };
  const table = (name) => {
    const body = el("div", {
      class: "wide",
      tabindex: "0",
      role: "region",
      "aria-label": t(`live_${name}`),
    });
    figures[name] = { body };
    return el(
      "section",
      { class: "panel", id: `live-${name}` },
      el("h3", { text: t(`live_${name}`) }),
      body,
    );
  };
  place.append(
    el("header", {}, el("h2", { text: t("live") }), el("p", { id: "live-line", role: "status" })),
    el(
      "div",
      { class: "grid-of-panels" },
      figure("rate", "double"),
      figure("requests", "double"),
      figure("streams"),
      figure("tokens"),
      figure("pages"),
      figure("kernels"),
      figure("memory"),
      figure("first"),
      figure("between"),
      figure("queued"),
      table("models"),
      table("facts"),
    ),
  );
  on("status", () => status.live && draw());
  addEventListener("resize", () => status.live && draw());
  draw();
}

const legend = (name, parts) =>
  figures[name].legend.replaceChildren(
    ...parts.map(([kind, text]) => el("span", {}, el("i", { class: `key ${kind}` }), text)),
  );

function draw() {
  const now = status.now,
    line = document.getElementById("live-line");
  const name = now?.server.name ?? "";
  line.textContent = !now
    ? status.error || t("lookForServer")
    : now.device
      ? `${name} · ${now.device.name} · ${t("state")}: ${now.state}`
      : t("notLoadedYet", { model: name });
  place.classList.toggle("idle", !now?.device);
  if (now) models(now);
  if (!now?.device) return void figures.facts.body.replaceChildren();
  curves(now);
  streams(now);
  memory(now);
  times(now);
  facts(now);
}

function curves(now) {
  const past = status.past,
    end = performance.now() / 1000;
  const seen = past.filter((p) => p.at > end - SECONDS);
  const pairs = seen.slice(1).map((p, at) => [seen[at], p]);
  const per = (what) =>
    pairs.map(([a, b]) => Math.max(0, (b[what] - a[what]) / Math.max(0.001, b.at - a.at)));
  const answers = per("generated"),
    prompts = per("prompt");
  const last = (list) => list.at(-1) ?? 0;
  figures.rate.value.textContent = t("perSecond", { n: fixed(last(answers), 1) });
  areas(
    figures.rate.picture,
    t("rateSays", { n: fixed(last(answers), 1) }),
    pairs.map(([, p]) => p.at - end),
    [
      { name: "answers", values: answers },
      { name: "prompts", values: prompts },
    ],
    { seconds: SECONDS },
  );
  legend("rate", [
    ["answers", t("answerTokens")],
    ["prompts", t("promptTokens")],
  ]);
  const is = (what) => seen.map((p) => p[what]);
  const answering = seen.map((p) => Math.max(0, p.running - p.prefilling));
  figures.requests.value.textContent = count(now.slots.running + now.queue.waiting);
  areas(
    figures.requests.picture,
    t("requestsSay", { n: now.slots.running, waiting: now.queue.waiting }),
    seen.map((p) => p.at - end),
    [
      { name: "answers", values: answering },
      { name: "prompts", values: is("prefilling") },
      { name: "waiting", values: is("waiting") },
    ],
    { seconds: SECONDS, whole: true },
  );
  legend("requests", [
    ["answers", t("answeringNow")],
    ["prompts", t("readingPrompt")],
    ["waiting", t("waitingNow")],
  ]);
}

function streams(now) {
  const { slots, pages } = now,
    answering = Math.max(0, slots.running - slots.prefilling);
  figures.streams.value.textContent = t("ofAll", { n: slots.running, all: slots.all });
  const parts = [
    ["answers", "answeringNow", answering],
    ["prompts", "readingPrompt", slots.prefilling],
    ["kept", "keptPrefixes", Math.min(slots.kept, slots.all - slots.running)],
  ];
  picture("streams", parts, slots.all, "sequencesEach");
  const used = slots.tokens - slots.kept_tokens;
  figures.tokens.value.textContent = t("ofAll", { n: slots.tokens, all: slots.room });
  bar(
    figures.tokens.picture,
    t("tokensSay", { n: slots.tokens, all: slots.room }),
    [
      { name: "answers", value: used },
      { name: "kept", value: slots.kept_tokens },
    ],
    slots.room,
    (n) => count(Math.round(n)),
  );
  legend("tokens", [
    ["answers", `${t("inUse")}: ${count(used)}`],
    ["kept", `${t("keptPrefixes")}: ${count(slots.kept_tokens)}`],
    ["free", `${bytes(slots.bytes_per_token)} ${t("perToken")}`],
  ]);
  figures.pages.box.hidden = !pages;
  if (pages) {
    figures.pages.value.textContent = t("ofAll", { n: pages.used, all: pages.all });
    picture(
      "pages",
      [
        ["shared", "sharedPages", pages.shared],
        ["answers", "ownPages", pages.used - pages.shared],
      ],
      pages.all,
      "pagesEach",
      { tokens: pages.tokens },
    );
  }
  const { compiled, cached } = now.kernels;
  figures.kernels.value.textContent = count(compiled + cached);
  if (compiled + cached) {
    picture(
      "kernels",
      [
        ["shared", "fromCache", cached],
        ["waiting", "compiledNow", compiled],
      ],
      compiled + cached,
      "kernelsEach",
    );
  } else {
    figures.kernels.picture.replaceChildren();
    figures.kernels.legend.textContent = t("noKernels");
  }
  figures.kernels.box.classList.toggle("empty", !(compiled + cached));
}

/** Cells and their legend. */
function picture(name, parts, all, each, values = {}) {
  const label = parts.map(([, word, n]) => `${t(word)}: ${count(n)}`).join(", ");
  const per = cells(
    figures[name].picture,
    label,
    parts.map(([kind, , value]) => ({ name: kind, value })),
    all,
  );
  const rest = all - parts.reduce((n, [, , value]) => n + value, 0);
  const shown = parts.map(([kind, word, n]) => [kind, `${t(word)}: ${count(n)}`]);
  if (rest > 0) shown.push(["free", `${t("free")}: ${count(rest)}`]);
  legend(name, shown);
  figures[name].legend.append(el("span", { class: "quiet", text: t(each, { n: per, ...values }) }));
}

function memory(now) {
  const of = now.device.memory;
  figures.memory.box.hidden = !of;
  if (!of) return;
  const own = Math.min(of.used, now.model.weights_bytes);
  figures.memory.value.textContent = `${bytes(of.used)} / ${bytes(of.total)}`;
  bar(
    figures.memory.picture,
    t("memorySays", { used: bytes(of.used), all: bytes(of.total) }),
    [
      { name: "answers", value: own },
      { name: "kept", value: of.used - own },
    ],
    of.total,
    bytes,
  );
  legend("memory", [
    ["answers", `${t("weights")}: ${bytes(now.model.weights_bytes)}`],
    ["kept", `${t("otherMemory")}: ${bytes(of.used - own)}`],
  ]);
}

/** The bound below which a share of the times lies. */
export function quantile({ bounds, counts, count: all }, share) {
  let sum = 0;
  for (let at = 0; at < counts.length; at += 1) {
    sum += counts[at];
    if (all && sum >= share * all)
      return at < bounds.length ? `≤ ${short(bounds[at])}` : `> ${short(bounds.at(-1))}`;
  }
  return "–";
}

function times(now) {
  for (const [name, of] of [
    ["first", "first_token"],
    ["between", "between_tokens"],
    ["queued", "queued"],
  ]) {
    const times = now.seconds[of],
      half = quantile(times, 0.5),
      most = quantile(times, 0.95);
    figures[name].value.textContent = half;
    columns(
      figures[name].picture,
      `${t(`live_${name}`)}: p50 ${half}, p95 ${most}`,
      times,
      (bound, n) => {
        const up = bound === undefined ? `> ${short(times.bounds.at(-1))}` : `≤ ${short(bound)}`;
        return `${up}: ${count(n)}`;
      },
    );
    figures[name].legend.textContent =
      `p50 ${half} · p95 ${most} · ${t("timesCounted", { n: times.count })}`;
  }
}

function rows(pairs) {
  const row = ([name, value]) =>
    el("div", {}, el("dt", { text: t(name) }), el("dd", { text: value }));
  return el("dl", { class: "facts" }, pairs.map(row));
}

function facts(now) {
  const { model, device, requests, tokens, server } = now,
    { parameters: p } = model;
  figures.facts.body.replaceChildren(
    rows([
      ["device", `${device.label} · ${device.arch}`],
      ["architecture", model.architecture],
      ["parameters", p >= 1e9 ? `${fixed(p / 1e9, 2)} · 10⁹` : `${fixed(p / 1e6, 0)} · 10⁶`],
      ["weights", bytes(model.weights_bytes)],
      ["contextOf", t("tokens", { tokens: model.context })],
      [
        "requestsDone",
        t("doneOf", {
          done: requests.done,
          cancelled: requests.cancelled,
          failed: requests.failed,
        }),
      ],
      ["promptTokens", t("cachedOf", { n: tokens.prompt, cached: tokens.cached })],
      ["answerTokens", count(tokens.generated)],
      ["drafts", t("acceptedOf", { n: tokens.accepted, all: tokens.drafted })],
      ["steps", count(now.steps)],
      ["busyFor", `${fixed((100 * now.busy_s) / Math.max(1, server.up_s), 1)} %`],
      ["preempted", count(now.preempted)],
      ["reopened", count(now.reopened)],
      ["connections", count(server.connections)],
      ["up", upFor(server.up_s)],
      ["version", server.version],
    ]),
  );
}

function upFor(seconds) {
  const hours = Math.floor(seconds / 3600),
    minutes = Math.floor((seconds % 3600) / 60);
  return hours
    ? `${count(hours)} h ${minutes} min`
    : minutes
      ? `${minutes} min ${Math.floor(seconds % 60)} s`
      : `${Math.floor(seconds)} s`;
}

function models(now) {
  const cell = (tag, value, number) => el(tag, { class: number ? "right" : null, text: value });
  const head = el(
    "tr",
    {},
    ["model", "state", "answeringNow", "waitingNow", "loads"].map((name, at) =>
      cell("th", t(name), at > 1),
    ),
  );
  const list = now.models.map((m) =>
    el(
      "tr",
      {},
      [m.name, m.state, count(m.running), count(m.waiting), count(m.loads)].map((value, at) =>
        cell("td", value, at > 1),
      ),
    ),
  );
  figures.models.body.replaceChildren(
    el("table", {}, el("thead", {}, head), el("tbody", {}, list)),
  );
}
