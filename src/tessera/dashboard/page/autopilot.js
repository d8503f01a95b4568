// What the autopilots of MigLayouts see, would do and did. A dry run says so first.

import { byId, family, make, moment } from "./dom.js";

const DEMAND = [["waiting", "waiting"], ["fell back", "fellBack"], ["rejected", "rejected"], ["in use", "inUse"], ["idle", "idle"], ["forecast", "forecast"]];
const round = (number) => Math.round(number * 10) / 10;
const line = (text) => text && make("span", { classes: ["why"], text });

const card = (one, kind) => make("li", { classes: [kind] }, one.when && moment(one.when), make("span", { classes: ["who"], text: `${one.node} card ${one.card}` }), " ",
  make("span", { classes: ["arrow"], text: `${one.before} → ${one.after}` }), ...one.says.map(line));
const planned = (one) => card(one, "pending");
const decided = (one) => card(one, one.kind);
const refused = (one) => make("li", { classes: ["rejected"] }, make("span", { classes: ["arrow"], text: one.what }), line(one.reason));

const list = (title, rows, item) => rows.length > 0 && make("section", { "aria-label": title }, make("h4", { text: title }), make("ol", { classes: ["log"], tabindex: 0, "aria-label": title }, ...rows.map(item)));

const demand = (rows) => rows.length > 0 && make("table", {},
  make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "devices" }), ...DEMAND.map(([text]) => make("th", { scope: "col", text })))),
  make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row" }, make("i", { classes: ["swatch", family(row.profile)] }), row.profile),
    ...DEMAND.map(([, key]) => make("td", { text: round(row[key]), classes: [key === "waiting" && row[key] > 0 && "lacking"] }))))));

const known = new Map(); // name → what is said of it, and its element: one that is as it was keeps its focus and its place

function drawn({ name, autopilot }) {
  const said = JSON.stringify(autopilot), before = known.get(name);
  if (before?.said === said) return before.element;
  const dry = autopilot.dryRun;
  const element = make("details", { classes: ["autopilot"] },
    make("summary", {}, make("b", { text: `Autopilot of ${name}` }), dry && make("span", { classes: ["badge", "note"], text: "dry run: nothing is changed" }), " ", make("span", { text: autopilot.summary })),
    make("div", { classes: ["lists"] }, list(dry ? "What it would cut" : "What it cuts next", autopilot.recuts, planned),
      list("What gets no room, and why", autopilot.refusals, refused), list("Last decisions", autopilot.history, decided)),
    demand(autopilot.demand));
  element.open = before?.element.open ?? true;
  known.set(name, { said, element });
  return element;
}

export function drawAutopilots(found) {
  const names = new Set(found.map(({ name }) => name));
  for (const name of known.keys()) if (!names.has(name)) known.delete(name);
  const elements = found.map(drawn);
  if (elements.some((one, at) => byId("autopilots").children[at] !== one) || byId("autopilots").childElementCount > elements.length) byId("autopilots").replaceChildren(...elements);
}
