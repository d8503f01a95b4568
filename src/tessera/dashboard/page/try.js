// What would be decided about a pod.

import { byId } from "./dom.js";

const first = byId("yaml").value;
let suggested = false;

// the form begins with what the cluster has most of, unless a person has written there
export function suggest(rows) {
  const devices = rows.filter((row) => row.resource.startsWith("nvidia.com/") && Number(row.allocatable) > 0);
  if (suggested || !devices.length || byId("yaml").value !== first) return;
  suggested = true;
  const best = devices.reduce((a, b) => (Number(b.available) > Number(a.available) ? b : a));
  byId("yaml").value = first.replace(/nvidia\.com\/[^:]+/, best.resource);
}

byId("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const output = byId("explanation");
  let text, good = false;
  try {
    const answer = await fetch("explain", { method: "POST", headers: { "Content-Type": "application/yaml" }, body: byId("yaml").value });
    text = await answer.text();
    good = answer.ok;
  } catch {
    text = "The page's server does not answer.";
  }
  output.textContent = text;
  output.classList.toggle("bad", !good);
  output.hidden = false;
  output.scrollIntoView({ block: "nearest" }); // it stands below the form, and that may be below the window
});
byId("yaml").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) byId("try").requestSubmit();
});
