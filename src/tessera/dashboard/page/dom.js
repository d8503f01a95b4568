// Elements, texts and times. What comes from the cluster is only ever put in as text, never as markup.

export const byId = (id) => document.getElementById(id);

function filled(element, { text, classes = [], ...attributes }, children) {
  if (text !== undefined) element.textContent = text;
  element.classList.add(...classes.filter(Boolean));
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.filter(Boolean));
  return element;
}

export const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const makeSvg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

export const collator = new Intl.Collator("en", { numeric: true }); // node-9 before node-10
export const percent = (share) => `${Math.round(share * 100)} %`;
export const arrow = (record) => record.replaceAll("->", " → ").replaceAll(",", ", ");

// today the time says enough; before, the day does
export function moment(when) {
  const at = new Date(when);
  if (!when || Number.isNaN(at.getTime())) return make("time", { text: "" });
  const clock = at.toLocaleTimeString([], { hour12: false });
  const today = at.toDateString() === new Date().toDateString();
  const day = at.toLocaleDateString([], { month: "short", day: "numeric" });
  return make("time", { text: today ? clock : `${day}, ${clock.slice(0, 5)}`, datetime: when, title: at.toLocaleString() });
}

// A name in two pieces, so that it is cut in the middle where it is too long: pods of one owner differ at the end.
export function cutInTheMiddle(name) {
  const at = name.length > 9 ? name.length - 5 : name.length; // as many as a ReplicaSet adds
  return make("span", { classes: ["cut"] }, make("span", { classes: ["start"], text: name.slice(0, at) }),
    at < name.length && make("span", { classes: ["end"] }, make("bdi", { text: name.slice(at) })));
}

// Profiles have colours: by compute slices, and a 1g with more memory than another of the same product has its own.
const larger = new Set();
const memory = (name) => Number(/^1g\.(\d+)gb/.exec(name)?.[1] ?? 0);

export function learnProfiles(names) { // of one product
  const small = names.filter(memory).sort((a, b) => memory(a) - memory(b));
  small.filter((name) => memory(name) > memory(small[0])).forEach((name) => larger.add(name));
}

export function family(name) {
  if (larger.has(name)) return "g1w";
  const slices = /^(\d+)g\./.exec(name)?.[1];
  if (slices) return ["1", "2", "3", "4", "7"].includes(slices) ? `g${slices}` : "gx";
  return name === "gpu" ? "g7" : "gx";
}
