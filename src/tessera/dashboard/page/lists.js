// What waits, what was decided, what layouts did.

import { arrow, byId, make, moment } from "./dom.js";
import { answer } from "./why.js";

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

const name = (who) => make("span", { classes: ["who"], text: who });
const entry = (kind, when, who, what, ...why) => make("li", { classes: [kind] }, moment(when), typeof who === "string" ? name(who) : who, " ",
  make("span", { classes: ["arrow"], text: what }), ...why.filter(Boolean).map((text) => make("span", { classes: ["why"], text })));

const number = (count) => count.toLocaleString("en");

// pods that wait open the answer to why: of a group, the one that waits longest
function asking({ namespace, pod, owner, count }) {
  const text = `${namespace}/${pod}${count > 1 ? ` and ${number(count - 1)} more of ${owner}` : ""}`;
  const button = make("button", { type: "button", classes: ["who"], text, title: `Why does ${pod} wait?` });
  button.addEventListener("click", () => answer(namespace, pod));
  return button;
}

export function drawPending({ count, groups, longest }) {
  const more = groups > longest.length ? `, the ${longest.length} groups that wait longest` : groups < count ? ` in ${groups} group${groups > 1 ? "s" : ""}` : "";
  byId("pending-count").textContent = count ? number(count) + more : "";
  drawLog("pending", longest, (row) => entry("pending", row.since, asking(row),
    row.asks + (row.count > 1 ? " each" : "") + (row.record ? `  (${arrow(row.record)})` : ""), row.why || "waiting for the scheduler"));
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
