// All nodes: filtered, in groups, as cells of an overview; the groups that are open with their nodes' mosaics.
//
// The server sends a summary of every node, and the mosaics of those that are asked for.

import { byId, collator, make, percent } from "./dom.js";
import { chosenBy, clearFilters, controls, offerChoices, wanted } from "./filters.js";
import { Heat } from "./heat.js";
import { choose } from "./mosaic.js";
import { PAGE, Page } from "./pages.js";

const FEW = 24; // so many nodes are shown at once, more begin folded
const NOTHING = "without devices";

const nodes = new Map(); // name → summary
const groups = new Map(); // title → Group
const folded = new Map(); // title → whether a person folded it or opened it
let choices = false; // whether the filters offer what there is
let order = null; // names in order; null when they have changed

export function setNode(name, summary) {
  const before = nodes.get(name);
  if (!before || !summary) order = null;
  if (!before || !summary || chosenBy(before) !== chosenBy(summary)) choices = false;
  if (summary) nodes.set(name, summary); else nodes.delete(name);
}

export const troubled = () => [...nodes.values()].filter((node) => node.trouble).length;

// groups

const USES = [[1, "full"], [0.5, "half or more in use"], [Number.MIN_VALUE, "less than half in use"], [0, "free"]];
const TITLES = {
  product: (node) => node.product || "other devices",
  pool: (node) => node.pool || "no pool",
  use: (node) => USES.find(([least]) => (node.used ?? 0) >= least)[1],
};
const titleOf = (node) => (Object.keys(node.resources ?? {}).length ? TITLES[byId("group-by").value](node) : NOTHING);

class Group {
  constructor(title) {
    this.title = title;
    this.pages = [];
    this.found = [];
    this.name = make("span", { text: title });
    this.numbers = make("span", { classes: ["count"] });
    this.trouble = make("span", { classes: ["badge", "bad"] });
    this.button = make("button", { type: "button", classes: ["fold"] }, this.name, this.numbers, this.trouble);
    this.heat = new Heat((hint) => { byId("hint").textContent = hint; }, reveal);
    this.list = make("div", { classes: ["pages"] });
    this.element = make("section", { classes: ["group"], "data-group": title, "aria-label": title }, make("h3", {}, this.button), this.heat.canvas, this.list);
    this.button.addEventListener("click", () => { folded.set(title, this.open); draw(); });
  }

  draw(found, all, open) {
    const same = open === this.open && all === this.all && found.length === this.found.length && found.every((node, at) => node === this.found[at]);
    if (same) return;
    Object.assign(this, { found, all, open });
    const used = found.filter((node) => node.used !== undefined);
    const share = used.reduce((sum, node) => sum + node.used, 0) / used.length;
    const bad = found.filter((node) => node.trouble).length;
    this.numbers.textContent = `${found.length} node${found.length === 1 ? "" : "s"}${used.length ? `, ${percent(share)} in use` : ""}`;
    this.trouble.textContent = `${bad} in trouble`;
    this.trouble.hidden = !bad;
    this.button.setAttribute("aria-expanded", open);
    this.heat.canvas.hidden = all <= FEW || this.title === NOTHING;
    if (!this.heat.canvas.hidden) this.heat.draw(found, all, `${this.title}, ${this.numbers.textContent}`);
    this.setPages(open ? found : []);
  }

  setPages(found) {
    const count = Math.ceil(found.length / PAGE);
    while (this.pages.length > count) this.pages.pop().remove();
    while (this.pages.length < count) {
      const page = new Page();
      this.pages.push(page);
      this.list.append(page.element);
    }
    this.pages.forEach((page, at) => page.show(found.slice(at * PAGE, (at + 1) * PAGE)));
  }

  remove() {
    this.setPages([]);
    this.element.remove();
  }
}

// drawing

export function draw() {
  order ??= [...nodes.keys()].sort(collator.compare);
  const { any, matches } = wanted();
  const found = order.map((name) => nodes.get(name)).filter(matches);
  const lists = Map.groupBy ? Map.groupBy(found, titleOf) : grouped(found);
  const titles = [...lists.keys()].sort((a, b) => (a === NOTHING) - (b === NOTHING) || rank(a) - rank(b) || collator.compare(a, b));
  for (const [title, group] of groups) if (!lists.has(title)) { group.remove(); groups.delete(title); }
  titles.forEach((title, at) => {
    const group = groups.get(title) ?? groups.set(title, new Group(title)).get(title);
    if (byId("groups").children[at] !== group.element) byId("groups").insertBefore(group.element, byId("groups").children[at] ?? null);
    const byDefault = found.length > FEW || (title === NOTHING && !any);
    group.draw(lists.get(title), found.length, !(folded.get(title) ?? byDefault));
  });
  byId("nodes-count").textContent = any ? `${found.length} of ${nodes.size}` : nodes.size;
  byId("nodes-empty").hidden = found.length > 0;
  byId("nodes-empty").textContent = nodes.size ? "Nothing matches." : "No nodes.";
  byId("heat-legend").hidden = found.length <= FEW;
  byId("clear").hidden = !any;
  if (!choices) offerChoices(nodes.values());
  choices = true;
  counted();
}

const counted = () => { document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1); };
const rank = (title) => USES.findIndex(([, name]) => name === title);

function grouped(found) {
  const lists = new Map();
  for (const node of found) (lists.get(titleOf(node)) ?? lists.set(titleOf(node), []).get(titleOf(node))).push(node);
  return lists;
}

// a node of the overview: its group opens, and the window goes there
export function reveal(name) {
  const node = nodes.get(name);
  folded.set(titleOf(node), false);
  draw();
  const page = groups.get(titleOf(node))?.pages.find((one) => one.nodes.includes(node));
  if (!page) return;
  page.setNear(true);
  const article = page.articles.get(name).element;
  article.scrollIntoView({ block: "center" });
  article.focus({ preventScroll: true });
}

// what a person does

for (const control of [...controls, byId("group-by")]) control.addEventListener("input", draw);

function showAll() {
  clearFilters();
  draw();
}
byId("clear").addEventListener("click", showAll);
byId("show-trouble").addEventListener("click", () => { byId("by-trouble").checked = true; draw(); byId("nodes").scrollIntoView(); });

const tileOf = (event) => event.target.closest?.("button.tile");
for (const kind of ["focusin", "click"]) byId("groups").addEventListener(kind, (event) => { if (tileOf(event)) choose(tileOf(event)); });
byId("groups").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") choose(null);
  if (!step || !tileOf(event)) return;
  const tiles = [...byId("groups").querySelectorAll("button.tile")];
  tiles[tiles.indexOf(tileOf(event)) + step]?.focus();
  event.preventDefault();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches?.("input, textarea")) { event.preventDefault(); byId("filter").focus(); }
  if (event.key === "Escape" && event.target === byId("filter")) { showAll(); byId("filter").blur(); }
});
const repaint = () => groups.forEach((group) => group.heat.paint());
new ResizeObserver(repaint).observe(byId("groups"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
