// A space-time diagram in the manner of ShiViz: a line for each node, a row for each event, and an
// edge wherever a message made one event depend on one of another node.

import { html, useState } from "./vendor.js";

const ROW = 24;
const NARROW = innerWidth < 500;
const COLUMN = NARROW ? 30 : 64;
const MOST_COLUMNS = 12;

// `events` are [host, clock, text, t in µs or null]. Pure: rows in an order that respects causes,
// and the edges between them, without those that follow from others.
export function layOut(hosts, events, most = 150, range = null) {
  const total = (clock) => Object.values(clock).reduce((sum, count) => sum + count, 0);
  const isDated = events.every((event) => event[3] !== null);
  const ordered = [...events].sort((a, b) => (isDated && a[3] - b[3]) || total(a[1]) - total(b[1]));
  const inRange = ordered.filter((event) => !range || (event[3] !== null && event[3] / 1e6 >= range[0] && event[3] / 1e6 <= range[1]));
  const shown = inRange.slice(-most);
  const rowOf = new Map(shown.map(([host, clock], row) => [`${host} ${clock[host]}`, row]));
  const clockOf = new Map(events.map(([host, clock]) => [`${host} ${clock[host]}`, clock]));
  const edges = [];
  shown.forEach(([host, clock], row) => {
    const before = clockOf.get(`${host} ${clock[host] - 1}`) || {};
    const causes = Object.keys(clock).filter((other) => other !== host && clock[other] > (before[other] || 0));
    for (const cause of causes) {
      const isImplied = causes.some((other) => other !== cause && ((clockOf.get(`${other} ${clock[other]}`) || {})[cause] || 0) >= clock[cause]);
      const from = rowOf.get(`${cause} ${clock[cause]}`);
      if (!isImplied && from !== undefined) edges.push([from, row]);
    }
  });
  const used = hosts.filter((host) => shown.some((event) => event[0] === host));
  return { hosts: used.slice(0, MOST_COLUMNS), rows: shown.map(([host, clock, text, t]) => ({ host, clock, text, t })), edges, leftOut: inRange.length - shown.length };
}

export function SpaceTime({ hosts, events, range = null, most = 150, label }) {
  const [chosen, setChosen] = useState(null);
  const { hosts: columns, rows, edges, leftOut } = layOut(hosts, events, most, range);
  if (!rows.length) return html`<p class="quiet">No event in this time.</p>`;
  const x = (host) => 14 + COLUMN * Math.max(0, columns.indexOf(host));
  const y = (row) => ROW * row + ROW / 2;
  const [width, height] = [28 + COLUMN * (columns.length - 1), ROW * rows.length];
  const of = rows[chosen];
  const isRelated = (row) => !of || causes(row, of) || causes(of, row);
  return html`<div class="spacetime" role="group" aria-label=${label}>
    ${leftOut ? html`<p class="quiet">The last ${most} events${range ? " of that time" : ""}; ${leftOut} before them are left out. Drag over a chart to choose a time.</p>` : null}
    <div class="columns" aria-hidden="true" style=${{ marginLeft: `${14 - COLUMN / 2}px` }}>${columns.map((host) => html`<span style=${{ width: `${COLUMN}px` }}>${host}</span>`)}</div>
    <div class="diagram">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">
        ${columns.map((host) => html`<line class="host" x1=${x(host)} x2=${x(host)} y1="0" y2=${height} />`)}
        ${edges.map(([from, to]) => html`<line class=${isRelated(rows[from]) && isRelated(rows[to]) ? "edge" : "edge faint"} x1=${x(rows[from].host)} y1=${y(from)} x2=${x(rows[to].host)} y2=${y(to)} />`)}
        ${rows.map((row, place) => html`<circle class=${place === chosen ? "dot chosen" : isRelated(row) ? "dot" : "dot faint"} cx=${x(row.host)} cy=${y(place)} r="5" />`)}
      </svg>
      <ol>${rows.map((row, place) => html`<li><button type="button" class=${isRelated(row) ? "" : "faint"} aria-pressed=${place === chosen} title=${row.text} onClick=${() => setChosen(place === chosen ? null : place)}>
        ${row.t === null || NARROW ? null : html`<span class="quiet">${new Date(row.t / 1000).toISOString().slice(14, 23)}</span> `}<b>${row.host}</b> ${row.text}</button></li>`)}</ol>
    </div></div>`;
}

// Whether one event may have caused another.
function causes(cause, effect) {
  return (effect.clock[cause.host] || 0) >= cause.clock[cause.host];
}
