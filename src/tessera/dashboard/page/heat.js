// Many nodes on little room: a cell for each, darker the more of it is in use, with a corner cut where something is wrong.

import { make, percent } from "./dom.js";

const PITCHES = [[40, 26], [200, 18], [800, 13], [2000, 10], [Infinity, 8]]; // up to so many nodes in all, so many pixels for each
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const told = (node) => [node.name, node.product, node.used === undefined ? "offers nothing" : `${percent(node.used)} in use`,
  ...(node.trouble ?? []), ...(node.notes ?? [])].filter(Boolean).join(" · ");

export class Heat {
  constructor(tell, choose) {
    this.canvas = make("canvas", { classes: ["heat"], tabindex: 0, role: "group" });
    this.nodes = [];
    this.at = -1;
    const cell = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left) / this.pitch), row = Math.floor((event.clientY - box.top) / this.pitch);
      return column < this.columns ? row * this.columns + column : -1;
    };
    const point = (at) => {
      const marked = [this.at, at];
      this.at = this.nodes[at] ? at : -1;
      tell(this.nodes[this.at] ? told(this.nodes[this.at]) : "");
      this.paintCells(marked.filter((one) => this.nodes[one]));
    };
    this.canvas.addEventListener("pointermove", (event) => { const at = cell(event); if (at !== this.at) point(at); });
    this.canvas.addEventListener("pointerleave", () => point(-1));
    this.canvas.addEventListener("focus", () => { if (this.at < 0) point(0); });
    this.canvas.addEventListener("blur", () => point(-1));
    this.canvas.addEventListener("click", (event) => { const node = this.nodes[cell(event)]; if (node) choose(node.name); });
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
      if (step) point(Math.min(this.nodes.length - 1, Math.max(0, this.at + step)));
      else if (event.key === "Home") point(0);
      else if (event.key === "End") point(this.nodes.length - 1);
      else if (event.key === "Enter" && this.nodes[this.at]) choose(this.nodes[this.at].name);
      else return;
      event.preventDefault();
    });
  }

  draw(nodes, all, label) {
    const before = this.nodes, pitch = PITCHES.find(([most]) => all <= most)[1];
    const same = pitch === this.pitch && nodes.length === before.length && this.canvas.width > 0;
    this.nodes = nodes;
    this.pitch = pitch;
    this.canvas.setAttribute("aria-label", `${label}: arrow keys walk its nodes, Enter opens one`);
    if (!same) return this.paint();
    this.paintCells([...nodes.keys()].filter((at) => nodes[at] !== before[at]));
  }

  paint() {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!width || this.canvas.hidden) return;
    const scale = devicePixelRatio || 1, { pitch } = this;
    this.columns = Math.max(1, Math.floor(width / pitch));
    const wide = Math.min(this.columns, this.nodes.length) * pitch, high = Math.ceil(this.nodes.length / this.columns) * pitch;
    this.canvas.width = wide * scale;
    this.canvas.height = high * scale;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    this.canvas.getContext("2d").scale(scale, scale);
    this.paintCells(this.nodes.keys());
  }

  paintCells(cells) {
    const [heat, empty, bad, focus] = ["--heat", "--line", "--bad", "--ink"].map(colour);
    const draw = this.canvas.getContext("2d"), { pitch } = this;
    const size = pitch - (pitch > 10 ? 2 : 1);
    for (const at of cells) {
      const node = this.nodes[at], x = (at % this.columns) * pitch, y = Math.floor(at / this.columns) * pitch;
      draw.clearRect(x, y, pitch, pitch);
      draw.globalAlpha = node.used === undefined ? 0.6 : 0.14 + 0.86 * node.used;
      draw.fillStyle = node.used === undefined ? empty : heat;
      draw.fillRect(x, y, size, size);
      draw.globalAlpha = 1;
      if (node.trouble) {
        draw.fillStyle = bad;
        draw.beginPath();
        draw.moveTo(x + size, y);
        draw.lineTo(x + size, y + size * 0.8);
        draw.lineTo(x + size * 0.2, y);
        draw.fill();
      }
      if (at === this.at) {
        draw.strokeStyle = focus;
        draw.lineWidth = 2;
        draw.strokeRect(x + 1, y + 1, size - 2, size - 2);
      }
    }
  }
}
