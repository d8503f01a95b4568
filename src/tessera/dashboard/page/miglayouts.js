// MigLayouts, as far as their controller says they are, and the nodes whose layout is being changed.

import { drawAutopilots } from "./autopilot.js";
import { byId, make, moment } from "./dom.js";

let layouts = { unseen: "", count: 0, first: [] };
let rollouts = { count: 0, first: [] };

const most = ({ count, first }) => (count > first.length ? `${count}, the first ${first.length}` : count || "");
const said = ({ kind, text, since }) => make("li", { classes: [kind] }, text, since && " ", since && make("span", { classes: ["quiet"] }, "since ", moment(since)));

// nodes that do not have their layout, behind one click
function reasons(nodes) {
  if (!nodes?.length) return null;
  return make("details", {}, make("summary", { text: `${nodes.length} node${nodes.length === 1 ? "" : "s"} without it` }),
    make("ul", {}, ...nodes.map((one) => make("li", { text: [`${one.name}: ${one.state}`, one.reason].filter(Boolean).join(", ") }))));
}

const row = (one) => make("tr", {}, make("th", { scope: "row", text: one.name, title: one.selector }), make("td", { text: one.mode }),
  ...["desired", "current", "updating", "failed"].map((key) => make("td", { text: one[key] ?? "", classes: [key === "failed" && one[key] > 0 && "lacking"] })),
  make("td", { classes: ["says"] }, make("ul", {}, ...one.says.map(said)), reasons(one.nodes)));

const rollout = (one) => make("li", { classes: [one.kind] }, one.since && moment(one.since), make("span", { classes: ["who"], text: one.node }), " ",
  one.phase && make("span", { classes: ["arrow"], text: one.phase }), one.owner && ` for ${one.owner}`,
  ...[one.words, one.reason].filter(Boolean).map((text) => make("span", { classes: ["why"], text })),
  one.until && make("span", { classes: ["why"] }, "has time until ", moment(one.until)));

function show() {
  byId("miglayouts").hidden = !(layouts.count || layouts.unseen || rollouts.count);
  byId("miglayouts-unseen").hidden = !layouts.unseen;
  byId("miglayouts-unseen").textContent = `MigLayouts are not shown: ${layouts.unseen}`;
  byId("miglayouts-table").hidden = !layouts.count;
  byId("miglayouts-count").textContent = most(layouts);
  byId("rollouts-part").hidden = !rollouts.count;
  byId("rollouts-count").textContent = most(rollouts);
}

export function drawMigLayouts(part) {
  layouts = part;
  const open = new Set([...byId("miglayouts-rows").querySelectorAll("tr:has(details[open]) th")].map((one) => one.textContent));
  byId("miglayouts-rows").replaceChildren(...part.first.map(row));
  for (const one of byId("miglayouts-rows").rows) if (open.has(one.cells[0].textContent)) one.querySelector("details")?.setAttribute("open", "");
  drawAutopilots(part.first.filter((one) => one.autopilot));
  show();
}

export function drawRollouts(part) {
  rollouts = part;
  byId("rollouts").replaceChildren(...part.first.map(rollout));
  show();
}
