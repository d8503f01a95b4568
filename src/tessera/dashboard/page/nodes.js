// All nodes: filtered, in groups, as cells of an overview; those in view as mosaics.
//
// The server sends a summary of every node, and the mosaics of those that are asked for. Nodes of an open group are drawn in
// pages, and only pages near the window have elements: thousands of nodes cost no more than those that are seen.

import { byId, family, make, percent } from "./dom.js";
import { Heat } from "./heat.js";
import { choose, drawNode, replaceNode } from "./mosaic.js";

const PAGE = 16; // nodes that are drawn or not drawn together
const FEW = 24; // so many nodes are shown at once, more begin folded
const KEPT = 200; // mosaics: those of pages that are drawn, and some more for who scrolls back
const NEAR = "800px"; // beyond the window's edge: what is scrolled to is there already
const NOTHING = "without devices";

const nodes = new Map(); // name → summary
const mosaics = new Map(); // name → { revision, mosaic }, of nodes that were drawn last
const groups = new Map(); // title → Group
const folded = new Map(); // title → whether a person folded it or opened it
let choices = false; // whether the filters offer what there is
let order = null; // names in order; null when they have changed

const collator = new Intl.Collator("en", { numeric: true });

export function setNode(name, summary) {
  const before = nodes.get(name);
  if (!before || !summary) order = null;
  if (!before || !summary || chosenBy(before) !== chosenBy(summary)) choices = false;
  if (summary) nodes.set(name, summary); else { nodes.delete(name); mosaics.delete(name); }
}

export const forgetMosaics = () => mosaics.forEach((one) => { one.revision = -1; });
export const troubled = () => [...nodes.values()].filter((node) => node.trouble).length;

// filters

const filters = { product: byId("by-product"), profile: byId("by-profile"), namespace: byId("by-namespace") };
const namespaces = (node) => (node.namespaces ??= new Set((node.pods ?? []).map((pod) => pod.slice(0, pod.indexOf("/")))));
const text = (node) => (node.text ??= [node.name, node.product, node.pool, ...Object.keys(node.resources ?? {}), ...(node.pods ?? []),
  ...(node.trouble ?? []), ...(node.notes ?? [])].join(" ").toLowerCase());

function wanted() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { product, profile, namespace } = filters, trouble = byId("by-trouble").checked;
  const any = words.length || product.value || profile.value || namespace.value || trouble;
  return { any, matches: (node) => (!product.value || node.product === product.value)
    && (!profile.value || profile.value in (node.resources ?? {}))
    && (!namespace.value || namespaces(node).has(namespace.value))
    && (!trouble || node.trouble) && words.every((word) => text(node).includes(word)) };
}

const chosenBy = (node) => (node.chosenBy ??= [node.product, ...Object.keys(node.resources ?? {}), ...namespaces(node)].join());

function offerChoices() {
  if (choices) return;
  choices = true;
  const found = { product: new Set(), profile: new Set(), namespace: new Set() };
  for (const node of nodes.values()) {
    if (node.product) found.product.add(node.product);
    Object.keys(node.resources ?? {}).forEach((name) => found.profile.add(name));
    namespaces(node).forEach((name) => found.namespace.add(name));
  }
  for (const [kind, select] of Object.entries(filters)) {
    if (select.value) found[kind].add(select.value); // what was chosen stays, though it may be gone
    const values = [...found[kind]].sort(collator.compare);
    if (select.dataset.values === values.join("\n")) continue;
    select.dataset.values = values.join("\n");
    const value = select.value;
    select.replaceChildren(make("option", { value: "", text: `every ${kind}` }), ...values.map((one) => make("option", { value: one, text: one })));
    select.value = value;
  }
}

// groups

const USES = [[1, "full"], [0.5, "half or more in use"], [Number.MIN_VALUE, "less than half in use"], [0, "free"]];
const TITLES = {
  product: (node) => node.product || "other devices",
  pool: (node) => node.pool || "no pool",
  use: (node) => USES.find(([least]) => node.used >= least)[1],
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

// pages

const pageOf = new WeakMap();
const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => pageOf.get(entry.target)?.setNear(entry.isIntersecting)), { rootMargin: NEAR });

class Page {
  constructor() {
    this.element = make("div", { classes: ["page"] });
    this.near = false;
    this.nodes = [];
    this.articles = new Map(); // name → { node, mosaic, element }
    pageOf.set(this.element, this);
    watcher.observe(this.element);
  }

  show(found) {
    this.nodes = found;
    if (this.near) this.draw();
    else this.element.style.minHeight ||= `${found.reduce((sum, node) => sum + 60 + 62 * Math.ceil((node.cards ?? 0) / 2), 0)}px`;
  }

  setNear(near) {
    if (near === this.near) return;
    this.near = near;
    if (near) return this.draw();
    this.element.style.minHeight = `${this.element.offsetHeight}px`;
    this.clear();
  }

  draw() {
    const names = new Set(this.nodes.map((node) => node.name));
    for (const [name, one] of this.articles) if (!names.has(name)) { one.element.remove(); this.articles.delete(name); }
    this.nodes.forEach((node, at) => {
      const held = mosaics.get(node.name);
      if (held?.revision !== node.revision) ask(node);
      const known = this.articles.get(node.name);
      let element = known?.element;
      // a node that is drawn waits for its new mosaic, so that its numbers and its tiles change together
      if (!known || known.mosaic !== held?.mosaic) {
        element = drawNode(node, held?.mosaic);
        if (known) replaceNode(known.element, element);
        this.articles.set(node.name, { mosaic: held?.mosaic, element });
      }
      if (this.element.children[at] !== element) this.element.insertBefore(element, this.element.children[at] ?? null);
    });
    if (this.nodes.every((node) => mosaics.has(node.name))) this.element.style.minHeight = "";
  }

  clear() {
    this.articles.clear();
    this.element.replaceChildren();
  }

  remove() {
    watcher.unobserve(this.element);
    this.clear();
    this.element.remove();
  }
}

// mosaics

const asked = new Map(); // name → revision
let asking = false;

function ask(node) {
  asked.set(node.name, node.revision);
  if (asking) return;
  asking = true;
  setTimeout(fetchMosaics); // all that are drawn now, together
}

const isDrawn = (name) => [...groups.values()].some((group) => group.pages.some((page) => page.articles.has(name)));

async function fetchMosaics() {
  const batch = [...asked].slice(0, 64);
  batch.forEach(([name]) => asked.delete(name));
  try {
    const answer = await fetch(`mosaics?nodes=${encodeURIComponent(batch.map(([name]) => name).join(","))}`);
    const found = await answer.json();
    for (const [name, revision] of batch) {
      mosaics.delete(name); // the map's order is that of their coming
      if (found[name]) mosaics.set(name, { revision, mosaic: found[name] });
    }
    for (const name of mosaics.keys()) if (mosaics.size > KEPT && !isDrawn(name)) mosaics.delete(name);
  } catch { // the stream says that the connection is lost, and everything is asked for when it is back
    asked.clear();
  }
  asking = false;
  if (asked.size) { asking = true; setTimeout(fetchMosaics); }
  draw({ onlyPages: true });
}

// drawing

export function draw({ onlyPages = false } = {}) {
  if (onlyPages) {
    for (const group of groups.values()) group.pages.forEach((page) => page.near && page.draw());
    return counted();
  }
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
  offerChoices();
  drawLegend();
  counted();
}

const counted = () => { document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn ?? 0) + 1); };
const rank = (title) => USES.findIndex(([, name]) => name === title);

function grouped(found) {
  const lists = new Map();
  for (const node of found) (lists.get(titleOf(node)) ?? lists.set(titleOf(node), []).get(titleOf(node))).push(node);
  return lists;
}

function drawLegend() {
  const names = filters.profile.dataset.values?.split("\n").filter((name) => /^\d+g\./.test(name) || name === "gpu") ?? [];
  if (byId("legend").dataset.names === names.join()) return;
  byId("legend").dataset.names = names.join();
  const items = names.map((what) => make("li", { classes: [family(what), "held"], text: what }));
  if (items.length) items.push(make("li", { text: "full colour: in use · pale: free · striped: leaving · dashed border: which pod is a guess" }));
  byId("legend").replaceChildren(...items);
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

for (const control of [byId("filter"), byId("group-by"), byId("by-trouble"), ...Object.values(filters)]) control.addEventListener("input", () => draw());

export function clearFilters() {
  byId("filter").value = "";
  byId("by-trouble").checked = false;
  for (const select of Object.values(filters)) select.value = "";
  draw();
}
byId("clear").addEventListener("click", clearFilters);
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
  if (event.key === "Escape" && event.target === byId("filter")) { clearFilters(); byId("filter").blur(); }
});
const repaint = () => groups.forEach((group) => group.heat.paint());
new ResizeObserver(repaint).observe(byId("groups"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
