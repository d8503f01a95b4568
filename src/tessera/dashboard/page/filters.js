// Which nodes a person wants to see, and what there is to choose from.

import { byId, collator, family, learnProfiles, make } from "./dom.js";

const filters = { product: byId("by-product"), profile: byId("by-profile"), namespace: byId("by-namespace") };
const namespaces = (node) => (node.namespaces ??= new Set((node.pods ?? []).map((pod) => pod.slice(0, pod.indexOf("/")))));
const text = (node) => (node.text ??= [node.name, node.product, node.pool, ...Object.keys(node.resources ?? {}), ...(node.pods ?? []),
  ...(node.trouble ?? []), ...(node.notes ?? [])].join(" ").toLowerCase());

export function wanted() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { product, profile, namespace } = filters, trouble = byId("by-trouble").checked;
  const any = words.length || product.value || profile.value || namespace.value || trouble;
  return { any, matches: (node) => (!product.value || node.product === product.value)
    && (!profile.value || profile.value in (node.resources ?? {}))
    && (!namespace.value || namespaces(node).has(namespace.value))
    && (!trouble || node.trouble) && words.every((word) => text(node).includes(word)) };
}

// what of a node the filters offer
export const chosenBy = (node) => (node.chosenBy ??= [node.product, ...Object.keys(node.resources ?? {}), ...namespaces(node)].join());

export function offerChoices(nodes) {
  const found = { product: new Set(), profile: new Set(), namespace: new Set() };
  const profiles = new Map(); // by product
  for (const node of nodes) {
    if (node.product) found.product.add(node.product);
    profiles.set(node.product, { ...profiles.get(node.product), ...node.resources });
    Object.keys(node.resources ?? {}).forEach((name) => found.profile.add(name));
    namespaces(node).forEach((name) => found.namespace.add(name));
  }
  profiles.forEach((names) => learnProfiles(Object.keys(names)));
  for (const [kind, select] of Object.entries(filters)) {
    if (select.value) found[kind].add(select.value); // what was chosen stays, though it may be gone
    const values = [...found[kind]].sort(collator.compare);
    if (select.dataset.values === values.join("\n")) continue;
    select.dataset.values = values.join("\n");
    const value = select.value;
    select.replaceChildren(make("option", { value: "", text: `all ${kind}s` }), ...values.map((one) => make("option", { value: one, text: one })));
    select.value = value;
  }
  drawLegend();
}

function drawLegend() {
  const names = filters.profile.dataset.values?.split("\n").filter((name) => /^\d+g\./.test(name) || name === "gpu") ?? [];
  if (byId("legend").dataset.names === names.join()) return;
  byId("legend").dataset.names = names.join();
  const items = names.map((what) => make("li", { classes: [family(what), "held"], text: what }));
  if (items.length) items.push(make("li", { text: "full colour: in use · pale: free · striped: leaving · dashed border: which pod is a guess" }));
  byId("legend").replaceChildren(...items);
}

export function clearFilters() {
  byId("filter").value = "";
  byId("by-trouble").checked = false;
  for (const select of Object.values(filters)) select.value = "";
}

export const controls = [byId("filter"), byId("by-trouble"), ...Object.values(filters)];
