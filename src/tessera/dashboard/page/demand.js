// What pods ask for and do not get, now and in the last hours, and what namespaces used.

import { byId, family, make, moment } from "./dom.js";
import { chart } from "./capacity.js";

const history = new Map(); // resource → points: seconds, asked, got as asked, missing
const WORDS = ["asked", "got", "missing"];
let part = { rows: [], namespaces: [] };

export function setDemand(resource, points) {
  if (points) history.set(resource, points); else history.delete(resource);
}

const cells = (row, keys) => keys.map((key) => make("td", { text: row[key], classes: [key === "missing" && row[key] > 0 && "lacking"] }));
const named = (row) => make("th", { scope: "row" }, make("i", { classes: ["swatch", family(row.name)] }), row.name);

export function drawDemand(found = part) {
  part = found;
  const sum = (key) => part.rows.reduce((all, row) => all + row[key], 0);
  byId("demand-now").textContent = `${sum("missing")} of ${sum("asked")} devices missing, ${sum("rejected")} rejected`;
  byId("demand-rows").replaceChildren(...part.rows.map((row) => make("tr", {}, named(row), ...cells(row, [...WORDS, "rejected"]),
    make("td", { classes: ["wide"] }, chart(row, history.get(row.resource) ?? [], WORDS)))));
  byId("use-rows").replaceChildren(...part.namespaces.map((row) => make("tr", {}, make("th", { scope: "row", text: row.namespace }), named(row),
    ...cells(row, ["asked", "got", "idle", "missing", "rejected"]))));
  byId("use-more").textContent = part.more > 0 ? `and ${part.more} more` : "";
  byId("use-since").replaceChildren(moment(part.since));
}
