// The server sends the state in named parts, all of them first and then those that changed. What came is drawn together, and
// for each millisecond of drawing there are some of rest: thousands of nodes that change do not take a core.

import { byId } from "./dom.js";
import { drawHeadline, drawTotals, setHistory } from "./capacity.js";
import { drawDemand, setDemand } from "./demand.js";
import { drawAdmissions, drawLayouts, drawPending } from "./lists.js";
import { drawMigLayouts, drawRollouts } from "./miglayouts.js";
import { draw as drawNodes, setNode, troubled } from "./nodes.js";
import { forgetMosaics } from "./pages.js";
import { suggest } from "./try.js";

const names = new Set(); // of parts that are there
const changed = new Map(); // parts that are not drawn yet: name → part, undefined when it is gone
const CHART_SECONDS = 30; // charts end now, and now goes on
const AGAIN_SECONDS = 3; // until a stream that was refused is asked for again: as long as browsers wait after a lost one
const REST = 4; // milliseconds for each of drawing
let waiting = 0;
let drawAt = 0; // not before
let everything = false; // the whole state came: draw also what is empty

function drawAbout({ cluster, trouble }) {
  byId("cluster").textContent = cluster;
  byId("trouble").textContent = trouble;
  byId("trouble").hidden = !trouble;
}

const DRAW = {
  about: drawAbout,
  totals: (rows) => { drawTotals(rows); suggest(rows); },
  demand: drawDemand,
  pending: (part) => { waiting = part.count; drawPending(part); },
  admissions: drawAdmissions,
  layouts: drawLayouts,
  miglayouts: drawMigLayouts,
  rollouts: drawRollouts,
};

function drawChanged() {
  const begun = performance.now();
  const parts = [...changed];
  changed.clear();
  let nodes = everything, charts = false, demand = false;
  everything = false;
  for (const [name, part] of parts) {
    if (name.startsWith("node/")) { setNode(name.slice(5), part); nodes = true; }
    if (name.startsWith("history/")) { setHistory(name.slice(8), part); charts = true; }
    if (name.startsWith("demand/")) { setDemand(name.slice(7), part); demand = true; }
  }
  if (nodes) drawNodes(); // first: the colours of profiles depend on what products there are
  for (const [name, part] of parts) if (part !== undefined) DRAW[name]?.(part);
  if (charts) drawTotals();
  if (demand) drawDemand();
  drawHeadline(waiting, troubled());
  drawAt = performance.now() + REST * (performance.now() - begun);
}

function drawSoon() {
  const rest = drawAt - performance.now();
  if (rest > 0 || document.hidden) setTimeout(drawChanged, Math.max(0, rest));
  else requestAnimationFrame(drawChanged);
}

function take({ set, gone }) {
  if (!changed.size) drawSoon();
  for (const [name, part] of Object.entries(set)) { names.add(name); changed.set(name, part); }
  for (const name of gone) { names.delete(name); changed.set(name, undefined); }
}

function link(text, kind) {
  byId("link").textContent = text;
  byId("link").dataset.state = kind;
}

function listen() {
  const events = new EventSource("events");
  const close = () => events.close();
  events.addEventListener("open", () => link("live", "live"));
  events.addEventListener("error", () => {
    link("connection lost, trying again …", "lost");
    if (events.readyState !== EventSource.CLOSED) return; // the browser itself tries again
    removeEventListener("pagehide", close); // the server refused: it has too many listeners, or a proxy answered
    setTimeout(listen, AGAIN_SECONDS * 1000);
  });
  events.addEventListener("all", (event) => {
    const { set } = JSON.parse(event.data);
    forgetMosaics();
    everything = true;
    take({ set, gone: [...names].filter((name) => !(name in set)) });
  });
  events.addEventListener("change", (event) => take(JSON.parse(event.data)));
  addEventListener("pagehide", close);
}

listen();
setInterval(() => { if (!document.hidden) { drawTotals(); drawDemand(); } }, CHART_SECONDS * 1000);
