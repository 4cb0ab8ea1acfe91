// One mirror: how far each partition is proven equal and copied, lag, and records that differ.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { Track } from "./charts.js";
import { chooseTime } from "./choices.js";
import { formatAge, formatClock, formatCount, formatRate, formatUs, plural } from "./format.js";
import { describeThing } from "./now.js";
import { DataTable, Notes, Problem, WayBack } from "./parts.js";
import { buildAddress, replaceQuery } from "./router.js";
import { rates, sortByTime } from "./series.js";
import { ActionButton, DataAge, PAGE_ROWS, compareNames, useActions, useThing } from "./things.js";
import { SidesView } from "./sides.js";

const PROOF_EVERY_MS = 2000;
const STATE_RANKS = { parked: 0, waiting: 1, copying: 2 };

export function Mirror({ address }) {
  const id = address.name.includes("/") ? `run:${address.name}` : `mirror:${address.name}`;
  const state = useThing(id);
  const proof = useProof(id);
  const mayAct = useActions();
  const set = (changes) => replaceQuery(address, changes);
  if (!state.thing) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${state.problem ? html`<${Problem} text=${state.problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const rows = mergeProof(state.partitions, proof);
  const { details } = state.thing;
  const tick = state.log.ticks[state.log.ticks.length - 1];
  const isPaused = Boolean(tick && tick.gauges.paused);
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1><span class="kind">mirror</span> ${state.thing.name}</h1>
    <p class="quiet">${details.source} → ${details.target}${details.delivery ? `, delivery ${details.delivery}` : ""}</p>
    <p class="sentence big">${describeThing(state.thing, state.log)}</p>
    <${DataAge} state=${state} />
    ${mayAct && state.isAlive ? html`<p class="actions">${isPaused
      ? html`<${ActionButton} body=${{ thing: id, action: "resume" }} label="Resume" title="resume this mirror" />`
      : html`<${ActionButton} body=${{ thing: id, action: "pause" }} label="Pause" title="pause this mirror" />`}</p>` : null}
    <${ProofLine} proof=${proof} rows=${rows} />
    ${address.query.differs ? html`<${SidesView} id=${id} row=${rows.find((row) => row.partition === address.query.differs)} onClose=${() => set({ differs: "" })} />` : null}
    <${PartitionBars} rows=${rows} query=${address.query} set=${set} />
    <${TopicTable} rows=${rows} />
    <${LagTracks} ticks=${sortByTime(state.log.ticks)} query=${address.query} set=${set} />
    <${Remarks} logs=${state.log.logs} />
  </main>`;
}

// proof.json, which a continuous verification replaces every second or so.
function useProof(id) {
  const [proof, setProof] = useState(null);
  useEffect(() => {
    let timer = null;
    const ask = async () => {
      if (!document.hidden) await getJson(`proof?thing=${encodeURIComponent(id)}`).then(setProof, () => null);
      timer = setTimeout(ask, PROOF_EVERY_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, [id]);
  return proof;
}

// One row for each partition that the mirror or the proof names, the worst first. Pure.
export function mergeProof(partitions, proof) {
  const rows = new Map(Object.values(partitions).map((entry) => [entry.partition, { ...entry, proven: null, difference: null, unavailable: "", provenUs: null }]));
  for (const each of (proof && proof.partitions) || []) {
    const known = rows.get(each.source) || { partition: each.source, target: each.target, state: "", reason: "", position: -1, end: each.source_end, lag: null, lag_s: null };
    rows.set(each.source, { ...known, end: Math.max(known.end, each.source_end), proven: each.proven_offset, difference: each.difference, unavailable: each.unavailable, provenUs: each.at_us });
  }
  const rank = (row) => (row.difference ? -1 : STATE_RANKS[row.state] ?? 3);
  return [...rows.values()].sort((a, b) => rank(a) - rank(b) || (b.lag || 0) - (a.lag || 0) || compareNames(a.partition, b.partition));
}

function ProofLine({ proof, rows }) {
  if (!proof) return html`<p class="quiet">Not verified continuously: <code>shoal mirror verify --follow</code> proves partitions equal while they are copied.</p>`;
  const differing = rows.filter((row) => row.difference).length;
  const ageS = Math.max(0, Date.now() / 1000 - proof.at_us / 1e6);
  return differing
    ? html`<p class="problem" role="alert">${plural(differing, "partition")} ${differing === 1 ? "differs" : "differ"} from the source. Choose a red mark to see both records.</p>`
    : html`<p>Proven equal as far as the green bars reach; the proof is ${formatAge(ageS)} old.</p>`;
}

function PartitionBars({ rows, query, set }) {
  const [count, setCount] = useState(PAGE_ROWS);
  const text = (query.filter || "").toLowerCase();
  const shown = rows.filter((row) => `${row.partition} ${row.state}`.toLowerCase().includes(text));
  return html`<section aria-labelledby="partitions"><h2 id="partitions">Partitions</h2>
    ${rows.length ? null : html`<p class="quiet">No partition has been copied yet.</p>`}
    ${rows.length > 8 ? html`<p class="filter"><label>Filter <input type="search" value=${query.filter || ""} placeholder="topic or state" onInput=${(event) => set({ filter: event.target.value })} /></label></p>` : null}
    ${rows.length ? html`<p class="key"><span class="proven">proven equal</span><span class="copied">copied</span><span class="behind">lag</span><span class="differs">differs</span></p>` : null}
    <ul class="bars">${shown.slice(0, count).map((row) => html`<${PartitionBar} key=${row.partition} row=${row} onDiffers=${() => set({ differs: row.partition })} />`)}</ul>
    ${shown.length > count ? html`<button type="button" onClick=${() => setCount(count + PAGE_ROWS)}>Show more of ${plural(shown.length, "partition")}</button>` : null}
  </section>`;
}

// A bar from offset 0 to the end of the source: proven, copied, lag.
function PartitionBar({ row, onDiffers }) {
  const end = Math.max(1, row.end, row.position, row.proven || 0);
  const x = (offset) => (1000 * Math.max(0, Math.min(offset, end))) / end;
  const [proven, copied] = [x(row.proven === null ? 0 : row.proven), x(row.position)];
  const lag = row.lag > 0 ? Math.max(6, 1000 - copied) : 0;
  const text = describeRow(row);
  // Where one side has no record the difference is behind what is proven.
  const differs = row.difference && (row.difference.source_offset >= 0 ? row.difference.source_offset : Math.max(0, row.proven));
  return html`<li class="bar">
    <span class="name">${row.partition}${row.target && row.target !== row.partition ? html` <span class="quiet">→ ${row.target}</span>` : null}</span>
    <svg viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" aria-label=${`${row.partition}: ${text}`}>
      <rect class="copied" width=${copied} height="12" />
      <rect class="proven" width=${Math.min(proven, row.difference ? x(differs) : 1000)} height="12" />
      ${lag ? html`<rect class="behind" x=${1000 - lag} width=${lag} height="12" />` : null}
      ${row.difference ? html`<rect class="differs" x=${Math.max(0, Math.min(992, x(differs) - 4))} width="8" height="12" />` : null}
    </svg>
    <span class="text">${text}
      ${row.difference ? html` <button type="button" class="danger" onClick=${onDiffers}>differs at offset ${formatCount(differs)}: show both</button>` : null}
      ${row.state === "parked" || row.state === "waiting" ? html` <b class=${row.state}>${row.state}</b> ${row.reason}` : null}</span>
  </li>`;
}

function describeRow(row) {
  return [
    row.position < 0 ? (row.state ? "not started" : "") : `copied up to ${formatCount(row.position)} of ${formatCount(row.end)}`,
    row.lag > 0 ? `${plural(row.lag, "record")} behind${row.lag_s > 0 ? `, ${formatUs(row.lag_s * 1e6)}` : ""}` : "",
    row.proven === null || row.proven < 0 ? "" : `proven up to ${formatCount(row.proven)}`,
    row.unavailable ? `not verified: ${row.unavailable}` : "",
  ].filter(Boolean).join("; ");
}

function TopicTable({ rows }) {
  const topics = new Map();
  for (const row of rows) {
    const topic = row.partition.replace(/-\d+$/, "");
    if (!topics.has(topic)) topics.set(topic, []);
    topics.get(topic).push(row);
  }
  const cells = [...topics].map(([topic, own]) => {
    const count = (state) => own.filter((row) => row.state === state).length;
    const states = ["copying", "waiting", "parked"].filter(count).map((state) => `${formatCount(count(state))} ${state}`);
    const differing = own.filter((row) => row.difference).length;
    const reasons = [...new Set(own.map((row) => row.reason).filter(Boolean))].slice(0, 3);
    const lags = own.map((row) => row.lag).filter((lag) => lag !== null && lag >= 0);
    return [topic, formatCount(own.length), [...states, differing ? `${formatCount(differing)} differ` : ""].filter(Boolean).join(", ") || "–", formatCount(lags.reduce((sum, lag) => sum + lag, 0)), formatLag(Math.max(0, ...own.map((row) => row.lag_s || 0))), reasons.join("; ") || "–"];
  });
  if (!cells.length) return null;
  return html`<section aria-labelledby="topics"><h2 id="topics">Topics</h2><div class="scroll" tabindex="0" role="region" aria-label="table: topics"><table>
    <thead><tr>${["topic", "partitions", "states", "lag (records)", "lag (time)", "reasons"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${cells.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

function formatLag(seconds) {
  return seconds ? formatUs(seconds * 1e6) : "0 s";
}

function LagTracks({ ticks, query, set }) {
  if (ticks.length < 2) return html`<p class="quiet">Not enough ticks for charts yet.</p>`;
  const times = ticks.map((tick) => tick.t / 1e6);
  const whole = [times[0], Math.max(times[times.length - 1], times[0] + 1)];
  const chosen = chooseTime(query, whole[1] - whole[0]);
  const range = [whole[0] + (chosen.from ?? 0), chosen.to === null ? whole[1] : whole[0] + chosen.to];
  const zoom = (from, to) => set(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const gauge = (name) => ticks.map((tick) => tick.gauges[name] ?? null);
  const [lagS, lag, copied] = [gauge("lag_s"), gauge("lag"), rates(ticks, "records")];
  const shared = { range, onZoom: zoom, spans: [] };
  const secondLabels = (u, splits) => splits.map((value) => (value === null ? "" : formatLag(value)));
  const rows = ticks.map((tick, place) => [formatClock(tick.t), lagS[place] === null ? "–" : formatLag(lagS[place]), formatCount(lag[place]), formatRate(copied[place])]);
  return html`<section aria-labelledby="lag"><h2 id="lag">Lag over time</h2>
    <${Notes} notes=${chosen.notes} />
    ${chosen.from !== null || chosen.to !== null ? html`<p><button type="button" onClick=${() => zoom()}>Show everything</button></p>` : null}
    <${Track} ...${shared} title="Lag in time: the age of the oldest record that is not copied" height=${130} series=${[{ label: "lag", color: "--c3", format: formatLag }]} columns=${[times, lagS]} yLabels=${secondLabels} />
    <${Track} ...${shared} title="Lag in records" height=${130} series=${[{ label: "lag", color: "--c0", format: formatCount }]} columns=${[times, lag]} />
    <${Track} ...${shared} title="Records copied per second" height=${150} series=${[{ label: "copied", color: "--c1", format: formatRate }]} columns=${[times, copied]} isLast=${true} />
    <${DataTable} caption="lag" columns=${["time (UTC)", "lag (time)", "lag (records)", "copied"]} rows=${rows.reverse()} /></section>`;
}

function Remarks({ logs }) {
  if (!logs.length) return null;
  return html`<section aria-labelledby="remarks"><h2 id="remarks">Remarks</h2>
    <ul class="remarks">${logs.slice(-20).reverse().map((each) => html`<li><span class="quiet">${formatClock(each.t)}</span> ${each.level === "info" ? "" : html`<b>${each.level}</b> `}${each.text}</li>`)}</ul></section>`;
}

export function mirrorAddress(id) {
  return buildAddress("mirror", id.replace(/^(mirror|run):/, ""));
}
