// The numbers: what there is, what is in use, what waits, and how that went in the last hours.

import { byId, family, make, makeSvg, percent } from "./dom.js";

const WIDTH = 150, HEIGHT = 30;
const SPAN = 6 * 3600; // seconds, as long as the server remembers
const history = new Map(); // resource → points: seconds, allocatable, allocated, waiting
let rows = [];

const weight = (row) => Number(/^(\d+)g\./.exec(row.name)?.[1] ?? (row.name === "gpu" ? 7 : 0));
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false }).slice(0, 5);
const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

export function setHistory(resource, points) {
  if (points) history.set(resource, points); else history.delete(resource);
}

export function drawTotals(found = rows) {
  rows = found;
  byId("totals-empty").hidden = rows.length > 0;
  byId("totals-table").hidden = rows.length === 0;
  const known = new Map([...byId("totals-rows").rows].map((one) => [one.dataset.resource, one]));
  byId("totals-rows").replaceChildren(...rows.map((row) => drawn(row, known.get(row.resource))));
  const gpus = rows.filter(weight);
  const sum = (key) => gpus.reduce((all, row) => all + weight(row) * Number(row[key]), 0);
  byId("in-use").textContent = percent(sum("allocated") / sum("allocatable"));
  byId("in-use").parentElement.hidden = sum("allocatable") === 0;
  const first = Math.min(...rows.flatMap((row) => history.get(row.resource)?.[0]?.[0] ?? []));
  byId("since").textContent = Number.isFinite(first) ? `since ${clock(start(first))}` : "history";
}

export function drawHeadline(waiting, trouble) {
  byId("waiting").textContent = waiting;
  byId("waiting-word").textContent = waiting === 1 ? "pod waits" : "pods wait";
  byId("headline").dataset.waiting = waiting > 0;
  byId("in-trouble").textContent = trouble;
  byId("trouble-word").textContent = trouble === 1 ? "node in trouble" : "nodes in trouble";
  byId("show-trouble").dataset.any = trouble > 0;
  byId("show-trouble").disabled = trouble === 0;
}

function drawn(row, before) {
  const said = JSON.stringify(row);
  if (before?.said === said) { // only the chart moves on
    before.lastElementChild.replaceChildren(chart(row));
    return before;
  }
  const full = make("span", { classes: ["fill"] });
  full.style.width = `${100 * Math.min(1, row.share)}%`;
  const bar = make("div", { classes: ["share", family(row.name)], role: "meter", "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(row.share * 100), "aria-label": `${row.name}: ${row.allocated} of ${row.allocatable} in use` },
    make("div", { classes: ["track"] }, full), make("span", { classes: ["percent"], text: percent(row.share) }));
  const element = make("tr", { "data-resource": row.resource },
    make("th", { scope: "row", title: row.resource }, make("i", { classes: ["swatch", family(row.name)] }), row.name),
    make("td", { classes: ["wide"] }, bar),
    make("td", { text: row.allocatable }), make("td", { text: row.allocated }), make("td", { text: row.available }),
    make("td", { text: row.asked, classes: ["asked", row.asked !== "0" && "some", row.lacking && "lacking"],
      ...(row.lacking && { title: "more is asked for than is available" }) }),
    make("td", { classes: ["wide"] }, chart(row)));
  element.said = said;
  return element;
}

const start = (first) => Math.max(first, Date.now() / 1000 - SPAN);

// Capacity as a line, use as an area below it, what waits as a line of its own. Of demand: what is asked for, got, and missing.
export function chart(row, points = history.get(row.resource) ?? [], words = ["allocatable", "allocated", "waiting"]) {
  if (!points.length) return make("span", { classes: ["quiet"], text: "…" });
  const now = Math.max(Date.now() / 1000, points.at(-1)[0]);
  const from = Math.min(start(points[0][0]), now - 10);
  const top = Math.max(1, ...points.flatMap((point) => point.slice(1)));
  const x = (at) => (WIDTH * (Math.max(at, from) - from) / (now - from)).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (HEIGHT - 3) * value / top).toFixed(1);
  const steps = (which) => points.map((point, at) => `${at ? "H" : "M"}${x(point[0])}${at ? "V" : ","}${y(point[which])}`).join("") + `H${WIDTH}`;
  const most = (which) => Math.max(...points.map((point) => point[which]));
  const least = (which) => Math.min(...points.map((point) => point[which]));
  const minutes = Math.max(1, Math.round((now - from) / 60));
  const text = `the last ${minutes < 90 ? plural(minutes, "minute") : plural(Math.round(minutes / 60), "hour")}: ${words[0]} ${least(1)} to ${most(1)}, ${words[1]} ${least(2)} to ${most(2)}, ${words[2]} at most ${most(3)}`;
  return makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", classes: ["chart", family(row.name)], role: "img", "aria-label": text },
    makeSvg("title", { text }),
    makeSvg("path", { classes: ["used"], d: `${steps(2)}V${HEIGHT - 1}H${x(points[0][0])}Z` }),
    makeSvg("path", { classes: ["capacity"], d: steps(1) }),
    most(3) > 0 && makeSvg("path", { classes: ["waits"], d: steps(3) }));
}
