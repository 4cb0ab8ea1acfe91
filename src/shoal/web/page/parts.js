// Small parts that several places use.

import { html, useErrorBoundary, useState } from "./vendor.js";
import { formatCount } from "./format.js";
import { buildAddress, partOf } from "./router.js";

export function Verdict({ word }) {
  return html`<span class=${`verdict ${word || "none"}`}>${word || "not judged"}</span>`;
}

export function FlowBar({ flow }) {
  const most = Math.max(1, ...flow.map((stage) => stage.count));
  const text = flow.map((stage) => `${stage.stage} ${formatCount(stage.count)}${stage.lost ? `, ${formatCount(stage.lost)} lost` : ""}`).join("; ");
  return html`<div class="flowbar" role="img" aria-label=${text}>
    ${flow.map((stage) => html`<div class="segment" title=${text}>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect class="passed" width=${(100 * stage.count) / most} height="10" />
        ${stage.lost ? html`<rect class="lost" x=${Math.min(96, (100 * stage.count) / most)} width=${Math.max(4, (100 * stage.lost) / most)} height="10" />` : null}
        ${stage.copies ? html`<rect class="copied" y="7" width=${Math.max(4, (100 * stage.copies) / most)} height="3" />` : null}
      </svg>
      <span>${stage.stage}</span>
    </div>`)}
  </div>`;
}

// The table behind a chart. `rows` may be a function: a closed table costs nothing.
export function DataTable({ caption, columns, rows, most = 300 }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="data" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Table: ${caption}</summary>
    ${isOpen ? html`<${TableRows} caption=${caption} columns=${columns} rows=${typeof rows === "function" ? rows() : rows} most=${most} />` : null}
  </details>`;
}

function TableRows({ caption, columns, rows, most }) {
  const shown = rows.slice(0, most);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`table: ${caption}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${rows.length > most ? html`<p class="quiet">The first ${formatCount(most)} of ${formatCount(rows.length)} rows; choose a shorter time for others.</p>` : null}`;
}

// A table that is always shown; the first column names its row.
export function FactTable({ id, title, columns, rows, caption }) {
  return html`<section aria-labelledby=${id}><h2 id=${id}>${title}</h2>${caption ? html`<p class="quiet">${caption}</p>` : null}
    <div class="scroll" tabindex="0" role="region" aria-label=${`table: ${title}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, ...cells]) => html`<tr><th scope="row">${name}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

export function Sparkline({ values, label }) {
  const known = values.map((value) => value ?? 0);
  const most = Math.max(1, ...known);
  const step = 120 / Math.max(1, known.length - 1);
  const points = known.map((value, place) => `${(place * step).toFixed(1)},${(30 - (28 * value) / most).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 120 31" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${known.length > 1 ? html`<polyline points=${points} />` : null}
  </svg>`;
}

// Where a page belongs: all runs, then the sweep and the run that it is a part of. Names of runs of
// sweeps are SWEEP/RUN, of parts RUN/PART.
export function WayBack({ name = "" }) {
  const above = name.split("/").slice(0, -1);
  const isPart = partOf(name) !== "run";
  const links = above.map((word, place) => {
    const isRun = isPart && place === above.length - 1;
    return html` › <a href=${isRun ? buildAddress("run", above.join("/")) : buildAddress("sweep", word)}>${word}</a>`;
  });
  return html`<p><a href="#/">All runs</a>${links}</p>`;
}

// What an address chose and this page could not follow.
export function Notes({ notes }) {
  return notes.map((text) => html`<p class="note" role="status">${text}</p>`);
}

// What cannot be drawn (data of another shape, a defect here) is said, instead of an empty page.
export function Guarded({ name, children }) {
  const [error] = useErrorBoundary((found) => console.error(found));
  if (!error) return children;
  return html`<main><p><a href="#/">All runs</a></p><h1>${name || "Shoal"}</h1>
    <${Problem} text=${`This cannot be shown: ${error.message}. Its files may be damaged or of another version; if shoal audit does not help, it is a defect of this page.`} /></main>`;
}

export function Problem({ text }) {
  return html`<p class="problem" role="alert">${text}</p>`;
}
