// What waits, what was decided, what layouts did.

import { arrow, byId, make, moment } from "./dom.js";

const CALM = 2000; // milliseconds: in a list where news come faster, marking them would be a flicker
const seen = new Map(); // list → what it showed before, and when

function drawLog(id, rows, item) {
  byId(`${id}-empty`).hidden = rows.length > 0;
  const keys = rows.map((row) => JSON.stringify(row));
  const { before, at: last } = seen.get(id) ?? {};
  const calm = performance.now() - last > CALM;
  byId(id).replaceChildren(...rows.map((row, at) => {
    const element = item(row);
    if (calm && !before.has(keys[at])) element.classList.add("new");
    return element;
  }));
  seen.set(id, { before: new Set(keys), at: performance.now() });
}

const entry = (kind, when, who, what, ...why) => make("li", { classes: [kind] }, moment(when), make("span", { classes: ["who"], text: who }), " ",
  make("span", { classes: ["arrow"], text: what }), ...why.filter(Boolean).map((text) => make("span", { classes: ["why"], text })));

export function drawPending({ count, longest }) {
  byId("pending-count").textContent = count > longest.length ? `${count}, the ${longest.length} that wait longest` : count || "";
  drawLog("pending", longest, (row) => entry("pending", row.since, `${row.namespace}/${row.pod}`,
    row.asks + (row.record ? `  (${arrow(row.record)})` : ""), row.why || "waiting for the scheduler"));
}

export function drawAdmissions(rows) {
  drawLog("admissions", rows, (row) => entry(row.decision.replaceAll(" ", "-"), row.when, `${row.namespace}/${row.pod}`,
    row.record ? arrow(row.record) : [row.asks, row.decision].filter(Boolean).join(", "), row.reason));
}

const WORDS = { desired: "desired, waiting for the node's state", pending: "in progress", success: "done", failed: "failed", "": "" };

export function drawLayouts(rows) {
  drawLog("layouts", rows, (row) => {
    const how = [WORDS[row.state] ?? row.state, row.reason].filter(Boolean).join(": ");
    const offers = row.offers ? `${row.state === "failed" ? "meanwhile the node's offers went" : "offers"} ${row.offers}` : row.state === "success" ? "offers as before" : "";
    return entry(row.state || "offers", row.when, row.node, row.desired || (row.state ? "layout" : "devices"), how, offers);
  });
}
