// Colours of the style sheet for canvases, which cannot use CSS variables.

const kept = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => kept.clear());

// Paper is light and narrow: charts are drawn again for it. This runs before the charts hear of it.
function setPrinting(isPrinting) {
  document.documentElement.classList.toggle("printing", isPrinting);
  kept.clear();
}
window.addEventListener("beforeprint", () => setPrinting(true));
window.addEventListener("afterprint", () => setPrinting(false));

export function readColor(name) {
  if (!name.startsWith("--")) return name;
  if (!kept.has(name)) kept.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return kept.get(name);
}

// The heat of a cell: the more samples, the stronger.
export function heatColor(share) {
  return `color-mix(in srgb, ${readColor("--heat")} ${Math.round(12 + 88 * share)}%, ${readColor("--surface")})`;
}
