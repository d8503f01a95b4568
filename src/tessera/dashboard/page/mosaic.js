// A node's cards as rows of tiles: the colour says the profile, the tile says the pod.

import { cutInTheMiddle, family, make } from "./dom.js";

const MOST_COUNTED = 10_000; // of one resource: more is bytes of something, not devices
const chosen = { node: "", key: "" };

function describe(node, tile, where) {
  if (!tile.what) return `${node.name}, ${where}: ${tile.why}`;
  const use = tile.leaving ? `no longer desired, stays for ${tile.pod}`
    : tile.pod ? (tile.guessed ? `one of those that ${tile.pod} may hold: which one, only the kubelet knows` : `held by ${tile.pod}`)
    : tile.out ? "not offered now" : "free";
  return `${node.name}, ${where}: ${tile.what}, ${use}${tile.id ? ` (${tile.id})` : ""}`;
}

// of another vendor's `gpu` the whole name of the resource: it is no card of NVIDIA's
const profile = (tile) => (tile.what === "gpu" && tile.resource !== "nvidia.com/gpu" ? tile.resource : tile.what);

function drawTile(node, tile, where, key) {
  const kinds = !tile.what ? ["gap"] : [family(profile(tile)), tile.leaving ? "leaving" : tile.pod && "held", tile.guessed && "guessed", tile.out && "out"];
  const text = describe(node, tile, where);
  const pod = tile.pod ? tile.pod.slice(tile.pod.indexOf("/") + 1) : "";
  return make("button", { type: "button", classes: ["tile", ...kinds], "aria-label": text, title: text, "data-key": tile.id || key,
    "data-id": tile.id || undefined, "data-pod": tile.pod || undefined, "data-resource": tile.resource },
    tile.what && make("b", { text: tile.what }),
    pod ? cutInTheMiddle(pod) : make("span", { classes: ["quiet"], text: !tile.what ? "" : tile.out ? "not offered" : "free" }));
}

function drawCard(node, card, placed) {
  const tiles = make("div", { classes: ["tiles"], "data-card": card.number }, ...card.tiles.map((tile) => {
    const last = tile.start + tile.size - 1;
    const where = placed ? `card ${card.number}, slice${tile.size > 1 ? `s ${tile.start}–${last}` : ` ${tile.start}`}` : `card ${card.number}, where on it is not known`;
    const element = drawTile(node, tile, where, `${card.number}/${tile.start}`);
    element.style.gridColumn = `${tile.start + 1} / span ${tile.size}`;
    return element;
  }));
  tiles.style.gridTemplateColumns = `repeat(${card.slices}, minmax(0, 1fr))`;
  return make("div", { classes: ["card", !placed && "unplaced"] }, make("div", { classes: ["card-name"], text: card.name === node.product ? `card ${card.number}` : `card ${card.number} · ${card.name}` }), tiles);
}

function drawLoose(node, resource, tiles) {
  return make("div", { classes: ["loose", "card"], "data-resource": resource }, make("div", { classes: ["card-name"], text: resource }),
    make("div", { classes: ["tiles"] }, ...tiles.map((tile, at) => drawTile(node, tile, resource, `${resource}/${at}`))));
}

// `mosaic` is undefined until the server has sent it.
export function drawNode(node, mosaic) {
  const badge = (kind) => (text) => make("span", { classes: ["badge", kind], text });
  const uses = Object.entries(node.resources ?? {}).filter(([, [allocatable]]) => allocatable <= MOST_COUNTED)
    .map(([name, [allocatable, allocated]]) => `${name}: ${allocated > allocatable ? `${allocated} in use, ${allocatable} offered` : `${allocated} of ${allocatable} in use`}`);
  const notes = (node.notes ?? []).map((text) => badge(text === "layout success" ? "good" : "note")(text));
  const article = make("article", { classes: ["node"], "data-node": node.name, "aria-label": `node ${node.name}`, tabindex: -1 },
    make("header", {}, make("h4", { text: node.name }), node.product && make("span", { classes: ["count"], text: node.product }),
      ...(node.trouble ?? []).map(badge("bad")), ...notes, make("span", { classes: ["uses"], text: uses.join(" · ") || "no devices" })),
    node.reason && make("p", { classes: ["reason"], text: node.reason }),
    mosaic?.source && make("p", { classes: ["source"], text: `layout known from: ${mosaic.source}${mosaic.placed ? "" : "; where on a card its slices lie is not known"}` }),
    mosaic?.cards.length && make("div", { classes: ["cards"] }, ...mosaic.cards.map((card) => drawCard(node, card, mosaic.placed))),
    ...Object.entries(mosaic?.loose ?? {}).map(([resource, tiles]) => drawLoose(node, resource, tiles)));
  if (chosen.node === node.name) mark(find(article, chosen.key));
  return article;
}

const find = (article, key) => [...article.querySelectorAll("button.tile")].find((tile) => tile.dataset.key === key);

// The chosen tile is marked, and told in full below its card: nothing is covered.
function mark(tile) {
  if (!tile) return;
  tile.setAttribute("aria-pressed", "true");
  tile.closest(".card").append(make("p", { classes: ["detail"], id: "detail", text: tile.getAttribute("aria-label") }));
}

export function choose(tile) {
  document.querySelectorAll(".tile[aria-pressed]").forEach((one) => one.removeAttribute("aria-pressed"));
  document.getElementById("detail")?.remove();
  chosen.node = tile ? tile.closest("article").dataset.node : "";
  chosen.key = tile ? tile.dataset.key : "";
  mark(tile);
}

// a node is drawn anew: the focus stays on the same device
export function replaceNode(before, after) {
  const focused = before.contains(document.activeElement) ? document.activeElement.dataset.key ?? "" : null;
  before.replaceWith(after);
  if (focused !== null) (find(after, focused) ?? after).focus({ preventScroll: true });
}
