// Why a pod waits: `tessera why`, in a dialog.

import { byId } from "./dom.js";

let asked = 0;

export async function answer(namespace, pod) {
  const number = ++asked;
  const output = byId("why-text");
  byId("why-title").textContent = `${namespace}/${pod}`;
  output.textContent = "looking …";
  byId("why").showModal();
  let text;
  try {
    text = await (await fetch(`why?${new URLSearchParams({ namespace, pod })}`, { method: "POST" })).text();
  } catch {
    text = "The page's server does not answer.";
  }
  if (number === asked) output.textContent = text; // else another was asked about meanwhile
}

byId("why-close").addEventListener("click", () => byId("why").close());
