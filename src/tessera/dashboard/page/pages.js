// Nodes of an open group are drawn in pages, and only pages near the window have elements: thousands of nodes cost no more
// than those that are seen. Their mosaics are asked for when they come into view, and again when they have changed.

import { make } from "./dom.js";
import { drawNode, replaceNode } from "./mosaic.js";

export const PAGE = 16; // nodes that are drawn or not drawn together
const KEPT = 200; // mosaics: those of pages that are drawn, and some more for who scrolls back
const BATCH = 32; // mosaics in one request: names may have 253 characters, and a request 16 KiB before its body
const NEAR = "800px"; // beyond the window's edge: what is scrolled to is there already

const mosaics = new Map(); // name → { revision, mosaic }, of nodes that were drawn last
const near = new Set(); // pages that are drawn

export const forgetMosaics = () => mosaics.forEach((one) => { one.revision = -1; });

const pageOf = new WeakMap();
const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => pageOf.get(entry.target)?.setNear(entry.isIntersecting)), { rootMargin: NEAR });

export class Page {
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

  setNear(isNear) {
    if (isNear === this.near) return;
    this.near = isNear;
    if (isNear) { near.add(this); return this.draw(); }
    near.delete(this);
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
    near.delete(this);
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

const isDrawn = (name) => [...near].some((page) => page.articles.has(name));

async function fetchMosaics() {
  const batch = [...asked].slice(0, BATCH);
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
  near.forEach((page) => page.draw());
}
