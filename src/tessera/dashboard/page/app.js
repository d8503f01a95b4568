"use strict";
// The server sends the state in named parts, all of them first and then those that changed. What comes from the cluster is
// only ever put in as text, never as markup.

const state = new Map();
const byId = (id) => document.getElementById(id);
const MOST_NODES = 200; // drawn at a time; the filter finds the others

function make(tag, { text, classes = [], ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  element.classList.add(...classes.filter(Boolean));
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter(Boolean));
  return element;
}

const arrow = (record) => record.replaceAll("->", " → ").replaceAll(",", ", ");

// capacity

function drawTotals(rows) {
  byId("totals-empty").hidden = rows.length > 0;
  byId("totals").querySelector("table").hidden = rows.length === 0;
  byId("totals-rows").replaceChildren(...rows.map((row) => {
    const share = make("meter", { min: 0, max: 1, value: row.share, "aria-label": `${row.allocated} of ${row.allocatable} in use` });
    return make("tr", { "data-resource": row.resource },
      make("td", { text: row.name, title: row.resource }),
      make("td", { classes: ["wide"] }, share),
      make("td", { text: row.allocatable }),
      make("td", { text: row.allocated }),
      make("td", { text: row.available }),
      make("td", { text: row.asked, classes: [row.lacking && "lacking"] }));
  }));
}

// nodes

function family(tile) {
  const slices = /^(\d+)g\./.exec(tile.what);
  if (slices) return ["1", "2", "3", "4", "7"].includes(slices[1]) ? `g${slices[1]}` : "gx";
  return tile.resource === "nvidia.com/gpu" ? "g7" : "gx";
}

function breakable(what) { // narrow tiles break a profile's name after its dot
  const name = make("b");
  what.split(".").forEach((piece, at, all) => name.append(at < all.length - 1 ? `${piece}.` : piece, at < all.length - 1 ? document.createElement("wbr") : ""));
  return name;
}

function describe(node, tile, where) {
  if (!tile.what) return `${where}: memory that is cut into nothing`;
  const use = tile.leaving ? `no longer wanted, stays for ${tile.pod}`
    : tile.pod ? (tile.guessed ? `one of those that ${tile.pod} may hold: which one, only the kubelet knows` : `held by ${tile.pod}`)
    : tile.out ? "not offered now" : "free";
  return `${node.name}, ${where}: ${tile.what}, ${use}${tile.id ? ` (${tile.id})` : ""}`;
}

function drawTile(node, tile, where, placed) {
  const kinds = !tile.what ? ["gap"] : [family(tile), tile.leaving ? "leaving" : tile.pod && "held", tile.guessed && "guessed", tile.out && "out"];
  const text = describe(node, tile, where);
  const pod = tile.pod ? tile.pod.slice(tile.pod.indexOf("/") + 1) : tile.out ? "not offered" : tile.what ? "free" : "";
  const element = make(tile.what ? "button" : "div", { classes: ["tile", ...kinds], "aria-label": text, title: text, ...(tile.what && { type: "button" }), ...(tile.id && { "data-id": tile.id }), ...(tile.pod && { "data-pod": tile.pod }), "data-resource": tile.resource },
    breakable(tile.what || "·"), make("span", { text: pod }));
  if (placed) element.style.gridColumn = `${tile.start + 1} / span ${tile.size}`;
  return element;
}

function drawCard(node, card) {
  const tiles = make("div", { classes: ["tiles"], "data-card": card.number }, ...card.tiles.map((tile) => {
    const last = tile.start + tile.size - 1;
    const where = `card ${card.number}, slice${tile.size > 1 ? `s ${tile.start}–${last}` : ` ${tile.start}`}`;
    return drawTile(node, tile, where, true);
  }));
  tiles.style.gridTemplateColumns = `repeat(${card.slices}, minmax(0, 1fr))`;
  return make("div", {}, make("div", { classes: ["card-name"], text: `card ${card.number} · ${card.name}` }), tiles);
}

function drawLoose(node, resource, tiles) {
  return make("div", { classes: ["loose"], "data-resource": resource }, make("div", { classes: ["card-name"], text: resource }),
    make("div", { classes: ["tiles"] }, ...tiles.map((tile) => drawTile(node, tile, resource, false))));
}

function drawNode(node) {
  const badge = (text, kind) => make("span", { classes: ["badge", kind], text });
  const states = { success: "good", failed: "bad" };
  const ill = Object.entries(node.unhealthy).map(([name, count]) => `${count} ${name} unhealthy or leaving`);
  const uses = node.resources.map((row) => `${row.name}: ${row.allocatable} allocatable, ${row.allocated} allocated, ${row.available} available`);
  return make("article", { classes: ["node"], "data-node": node.name, "aria-label": `node ${node.name}` },
    make("header", {}, make("h3", { text: node.name }), node.product && make("span", { classes: ["count"], text: node.product }),
      !node.ready && badge("not ready", "bad"), node.cordoned && badge("cordoned", "note"),
      node.state && badge(`layout ${node.state}`, states[node.state] || "note"), ill.length && badge(ill.join(", "), "note")),
    node.reason && make("p", { classes: ["reason"], text: node.reason }),
    node.cards.length && make("div", { classes: ["cards"] }, ...node.cards.map((card) => drawCard(node, card))),
    ...Object.entries(node.loose).map(([resource, tiles]) => drawLoose(node, resource, tiles)),
    make("footer", { text: uses.join(" · ") || "no devices" }));
}

function matches(node, words) {
  if (!words.length) return true;
  const tiles = [...node.cards.flatMap((card) => card.tiles), ...Object.values(node.loose).flat()];
  const text = [node.name, node.product, node.state, ...tiles.flatMap((tile) => [tile.what, tile.pod])].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

const drawn = new Map(); // node → the part it was drawn from, and its element

function drawNodes() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...state].filter(([name]) => name.startsWith("node/")).map(([, node]) => node);
  const order = (node) => (node.resources.length ? 0 : 1);
  all.sort((a, b) => order(a) - order(b) || a.name.localeCompare(b.name));
  const found = all.filter((node) => matches(node, words));
  const shown = found.slice(0, MOST_NODES);
  const list = byId("node-list");
  for (const name of [...drawn.keys()]) {
    if (!shown.some((node) => node.name === name)) { drawn.get(name).element.remove(); drawn.delete(name); }
  }
  shown.forEach((node, at) => {
    const known = drawn.get(node.name);
    let element = known?.element;
    if (known?.part !== node) {
      element = drawNode(node);
      const focused = known && known.element.contains(document.activeElement) ? document.activeElement.dataset.id : null;
      if (known) known.element.replaceWith(element);
      if (focused) [...element.querySelectorAll("[data-id]")].find((tile) => tile.dataset.id === focused)?.focus();
      drawn.set(node.name, { part: node, element });
    }
    if (list.children[at] !== element) list.insertBefore(element, list.children[at] || null);
  });
  const more = found.length > shown.length ? `, ${shown.length} drawn` : "";
  byId("nodes-count").textContent = words.length ? `${found.length} of ${all.length}${more}` : `${all.length}${more}`;
  byId("nodes-empty").hidden = found.length > 0;
  byId("nodes-empty").textContent = all.length ? "Nothing matches." : "No nodes.";
  drawLegend(all);
}

function drawLegend(nodes) {
  const tiles = nodes.flatMap((node) => node.cards.flatMap((card) => card.tiles)).filter((tile) => tile.what);
  const kinds = new Map(tiles.map((tile) => [tile.what, family(tile)]));
  const size = (what) => parseFloat(what.split(".")[1]) || 9999;
  const items = [...kinds.keys()].sort((a, b) => size(a) - size(b)).slice(0, 12)
    .map((what) => make("li", { classes: [kinds.get(what), "held"], text: what }));
  if (items.length) items.push(make("li", { text: "full colour: in use · pale: free · striped: leaving" }));
  byId("legend").replaceChildren(...items);
}

// lists

const clock = (when) => (when ? new Date(when).toLocaleTimeString([], { hour12: false }) : "");
const seen = { admissions: null, layouts: null };

function drawLog(id, rows, item) {
  byId(`${id}-empty`).hidden = rows.length > 0;
  const keys = rows.map((row) => JSON.stringify(row));
  const before = seen[id];
  byId(id).replaceChildren(...rows.map((row, at) => {
    const element = item(row);
    if (before && !before.has(keys[at])) element.classList.add("new");
    return element;
  }));
  seen[id] = new Set(keys);
}

function drawAdmission(row) {
  return make("li", { classes: [row.decision.replaceAll(" ", "-")] },
    make("time", { text: clock(row.when), datetime: row.when }), `${row.namespace}/${row.pod} `,
    make("span", { classes: ["arrow"], text: row.record ? arrow(row.record) : row.decision }),
    row.reason && make("span", { classes: ["why"], text: row.reason }));
}

function drawLayout(row) {
  return make("li", { classes: [row.state] },
    make("time", { text: clock(row.when), datetime: row.when }), `${row.node} `,
    make("span", { classes: ["arrow"], text: row.offers }),
    make("span", { classes: ["why"], text: [row.state, row.reason].filter(Boolean).join(": ") }));
}

function drawPending(rows) {
  byId("pending-count").textContent = rows.length || "";
  drawLog("pending", rows, (row) => make("li", { classes: ["pending"] },
    make("time", { text: clock(row.since), datetime: row.since }), `${row.namespace}/${row.pod} `,
    make("span", { classes: ["arrow"], text: row.asks + (row.record ? `  (${arrow(row.record)})` : "") }),
    make("span", { classes: ["why"], text: row.why || "not looked at yet" })));
}

// the state, as it comes

function draw(names) {
  const part = (name, empty) => state.get(name) ?? empty;
  if (names.some((name) => name.startsWith("node/"))) drawNodes();
  for (const name of names) {
    if (name === "totals") drawTotals(part(name, []));
    if (name === "pending") drawPending(part(name, []));
    if (name === "admissions") drawLog(name, part(name, []), drawAdmission);
    if (name === "layouts") drawLog(name, part(name, []), drawLayout);
    if (name === "about") {
      const about = part(name, { cluster: "", trouble: "" });
      byId("cluster").textContent = about.cluster;
      byId("trouble").textContent = about.trouble;
      byId("trouble").hidden = !about.trouble;
    }
  }
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}

function take({ set, gone }) {
  for (const [name, part] of Object.entries(set)) state.set(name, part);
  for (const name of gone) state.delete(name);
  draw([...Object.keys(set), ...gone]);
}

function link(text, kind) {
  byId("link").textContent = text;
  byId("link").dataset.state = kind;
}

const events = new EventSource("/events");
events.addEventListener("open", () => link("live", "live"));
events.addEventListener("error", () => link("connection lost, trying again …", "lost"));
events.addEventListener("all", (event) => {
  const message = JSON.parse(event.data);
  const gone = [...state.keys()].filter((name) => !(name in message.set));
  take({ set: message.set, gone });
  if (!Object.keys(message.set).some((name) => name.startsWith("node/"))) drawNodes();
});
events.addEventListener("change", (event) => take(JSON.parse(event.data)));
addEventListener("pagehide", () => events.close());

// what a person does

byId("filter").addEventListener("input", drawNodes);
addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, textarea");
  if (event.key === "/" && !typing) { event.preventDefault(); byId("filter").focus(); }
  if (event.key === "Escape" && event.target === byId("filter")) { byId("filter").value = ""; drawNodes(); byId("filter").blur(); }
  if (event.key === "Enter" && event.ctrlKey && event.target === byId("yaml")) byId("try").requestSubmit();
});

function showDetail(event) {
  const tile = event.target.closest?.("button.tile");
  if (!tile) return;
  byId("detail").textContent = tile.getAttribute("aria-label");
  byId("detail").dataset.chosen = "";
}
byId("node-list").addEventListener("focusin", showDetail);
byId("node-list").addEventListener("click", showDetail);
byId("node-list").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tile = event.target.closest?.("button.tile");
  if (!step || !tile) return;
  const tiles = [...byId("node-list").querySelectorAll("button.tile")];
  tiles[tiles.indexOf(tile) + step]?.focus();
  event.preventDefault();
});

byId("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const output = byId("explanation");
  let text, good = false;
  try {
    const answer = await fetch("/explain", { method: "POST", headers: { "Content-Type": "application/yaml" }, body: byId("yaml").value });
    text = await answer.text();
    good = answer.ok;
  } catch {
    text = "The page's server does not answer.";
  }
  output.textContent = text;
  output.classList.toggle("bad", !good);
  output.hidden = false;
});
