// How far messages moved from their place, by lane.

import { html } from "./vendor.js";
import { formatCount, formatRatio, plural } from "./format.js";
import { listMovedLanes } from "./model.js";
import { DataTable } from "./parts.js";

const MOST_BARS = 20;

export function Displacement({ group }) {
  const lanes = listMovedLanes(group.lanes);
  const { F: sum, K: pairs, delivered } = group.metrics;
  if (!sum) return null;
  const most = Math.max(1e-9, ...lanes.map((lane) => lane.mean ?? 0));
  const mean = (value) => (value === null ? "–" : Number(value.toPrecision(3)).toLocaleString("en-US"));
  const rows = () => lanes.map((lane) => [lane.name, formatCount(lane.reordered), formatCount(lane.sum), mean(lane.mean), formatCount(lane.pairs), lane.order === null ? "–" : formatRatio(lane.order)]);
  return html`<section aria-labelledby="moved"><h2 id="moved">How far messages moved</h2>
    <p>${formatCount(sum)} places in all${delivered ? `, ${mean(sum / delivered)} on average over ${plural(delivered, "message")}` : ""}; ${plural(pairs, "pair")} swapped.</p>
    <ul class="bars">${lanes.slice(0, MOST_BARS).map((lane) => html`<li class="bar"><span class="name">${lane.name}</span>
      <svg viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" aria-label=${`${lane.name}: ${mean(lane.mean)} places on average`}><rect class="behind" width=${Math.max(4, (1000 * (lane.mean ?? 0)) / most)} height="12" /></svg>
      <span class="text">${mean(lane.mean)} places on average, ${formatCount(lane.sum)} in all; ${formatCount(lane.reordered)} reordered</span></li>`)}</ul>
    ${lanes.length > MOST_BARS ? html`<p class="quiet">The ${MOST_BARS} lanes that moved most; the table has all ${formatCount(lanes.length)}.</p>` : null}
    ${lanes.length ? html`<${DataTable} caption="how far messages moved" columns=${["lane", "reordered", "places in all", "on average", "pairs swapped", "order"]} rows=${rows} />` : null}</section>`;
}
