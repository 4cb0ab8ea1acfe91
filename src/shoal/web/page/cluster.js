// One cluster: its nodes and what may be done to them, partitions, order of events, topics.

import { html, useState } from "./vendor.js";
import { chooseTime } from "./choices.js";
import { formatBytes, formatCount, plural } from "./format.js";
import { stateColor, stateRows, electionTimes, usageSeries } from "./model.js";
import { activeFaults, describeThing, kindOf } from "./now.js";
import { Notes, Problem, WayBack } from "./parts.js";
import { replaceQuery } from "./router.js";
import { rates, sortByTime } from "./series.js";
import { ClusterTrace } from "./stories.js";
import { LiveTail } from "./tail.js";
import { ActionButton, DataAge, PAGE_ROWS, compareNames, currentStates, useActions, useThing } from "./things.js";
import { StateTrack, UsageTracks } from "./tracks.js";
import { Track } from "./charts.js";

export function Cluster({ address }) {
  const id = address.name.includes("/") ? `run:${address.name}` : `cluster:${address.name}`;
  const state = useThing(id);
  const mayAct = useActions() && state.isAlive;
  const set = (changes) => replaceQuery(address, changes);
  if (!state.thing) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${state.problem ? html`<${Problem} text=${state.problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const { log } = state;
  const partitions = readPartitions(log);
  const window = timeWindow(log, address.query);
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1><span class="kind">${kindOf(state.thing)}</span> ${state.thing.name}</h1>
    <p class="quiet">${describeAddress(state.thing.details)}</p>
    <p class="sentence big">${describeThing(state.thing, log)}</p>
    <${DataAge} state=${state} />
    <${Notes} notes=${window.notes} />
    <${Nodes} id=${id} log=${log} mayAct=${mayAct} isAlive=${state.isAlive} own=${state.thing.details.node} />
    <${Faults} id=${id} log=${log} mayAct=${mayAct} isAlive=${state.isAlive} />
    <${ClusterTracks} log=${log} window=${window} query=${address.query} set=${set} />
    <${Partitions} rows=${partitions} query=${address.query} set=${set} />
    ${state.thing.details.node ? null : html`<${ClusterTrace} id=${id} isAlive=${state.isAlive} window=${window.isChosen ? window.range : null} />`}
    ${state.thing.details.bootstrap ? html`<${LiveTail} id=${id} topics=${[...new Set(partitions.map((row) => row.topic))].sort(compareNames)} chosen=${address.query.topic || ""} onChoose=${(topic) => set({ topic })} isAlive=${state.isAlive} />` : null}
  </main>`;
}

// Addresses for clients; of a single node, whose view of its cluster this is.
function describeAddress({ bootstrap, node, address }) {
  return node ? `its cluster as ${node} at ${address} sees it; counters and processes are its own` : bootstrap;
}

// Leaders, in-sync and eligible replicas, from the last state of each partition. Pure.
export function readPartitions(log) {
  return currentStates(log, ["partition"]).map((event) => {
    const name = event.object.slice("partition ".length);
    const { leader, epoch, replicas = [], in_sync: inSync = [], eligible = [] } = event.details || {};
    const problem = leader < 0 ? "no leader" : inSync.length < replicas.length ? "under-replicated" : "";
    return { name, topic: name.replace(/-\d+$/, ""), leader, epoch, replicas, inSync, eligible, problem };
  }).sort((a, b) => Number(!a.problem) - Number(!b.problem) || compareNames(a.name, b.name));
}

function Nodes({ id, log, mayAct, isAlive, own }) {
  const nodes = currentStates(log, ["broker", "controller"]).sort((a, b) => compareNames(a.object, b.object));
  const tick = log.ticks[log.ticks.length - 1];
  const before = log.ticks[log.ticks.length - 2];
  const usageOf = (name) => {
    const now = tick && tick.processes.find((each) => each.name === name);
    const old = now && before && before.processes.find((each) => each.name === name && each.pid === now.pid);
    return { bytes: now ? now.resident_bytes : null, cores: old && tick.t > before.t ? ((now.cpu_s - old.cpu_s) * 1e6) / (tick.t - before.t) : null };
  };
  return html`<section aria-labelledby="nodes"><h2 id="nodes">Brokers and controllers</h2>
    <ul class="nodes">${nodes.map((event) => html`<${NodeCard} key=${event.object} id=${id} event=${event} usage=${usageOf(event.object)} mayAct=${mayAct && (!own || own === event.object)} isAlive=${isAlive} isSingle=${Boolean(own)} />`)}</ul>
    ${isAlive && !mayAct ? html`<p class="quiet">With <code>shoal serve --allow-actions</code> this page can kill, pause, cut off and restart nodes.</p>` : null}
  </section>`;
}

function NodeCard({ id, event, usage, mayAct, isAlive, isSingle }) {
  const details = event.details || {};
  const isController = event.object.startsWith("controller ");
  const isInside = isController && !details.address;
  const state = isAlive ? event.state : "ended";
  const facts = [
    isInside ? "inside the supervisor" : details.address,
    details.replicas ? `leads ${formatCount(details.leads)} of ${plural(details.replicas, "replica")}` : "",
    details.behind ? `behind in ${formatCount(details.behind)}` : "",
    usage.cores === null || !isAlive ? "" : `${usage.cores.toFixed(2)} cores`,
    usage.bytes === null || !isAlive ? "" : formatBytes(usage.bytes),
  ].filter(Boolean);
  return html`<li class="node"><div class="head"><b>${event.object}</b> <span class=${`state ${stateColor(state).slice(2)}`}>${state}</span></div>
    <p class="quiet">${facts.join(" · ")}</p>
    ${event.reason && isAlive ? html`<p class="quiet">${event.reason}</p>` : null}
    ${mayAct && !isInside ? html`<${NodeActions} id=${id} event=${event} isSingle=${isSingle} />` : null}</li>`;
}

function NodeActions({ id, event, isSingle }) {
  const [kind, number] = event.object.split(" ");
  const button = (action, label, isDangerous) => html`<${ActionButton} key=${action} body=${{ thing: id, action, node: Number(number) }} label=${label} title=${`${label.toLowerCase()} ${kind} ${number}`} isDangerous=${isDangerous} />`;
  // A single node that is paused cannot write that it is.
  if (isSingle) return html`<p class="actions">${button("kill", "Kill", true)} ${button("pause", "Pause")} ${button("resume", "Resume")}</p>`;
  if (event.state === "dead") return html`<p class="actions">${button("restart", "Restart")}</p>`;
  if (event.state === "paused") return html`<p class="actions">${button("resume", "Resume")} ${button("kill", "Kill", true)}</p>`;
  return html`<p class="actions">${button("kill", "Kill", true)} ${button("pause", "Pause")} ${button("cut", "Cut off")} ${button("heal", "Heal")}</p>`;
}

function Faults({ id, log, mayAct, isAlive }) {
  const faults = isAlive ? activeFaults(log.faults) : [];
  if (!faults.length) return null;
  return html`<section aria-labelledby="faults"><h2 id="faults">Faults now</h2>
    <ul>${faults.slice(0, 20).map((text) => html`<li>${text}</li>`)}</ul>
    ${faults.length > 20 ? html`<p class="quiet">and ${formatCount(faults.length - 20)} more</p>` : null}
    ${mayAct ? html`<p class="actions"><${ActionButton} body=${{ thing: id, action: "heal" }} label="Heal all" title="end all faults" /></p>` : null}</section>`;
}

function timeWindow(log, query) {
  const times = [...log.ticks, ...log.states].map((event) => event.t / 1e6);
  const first = log.ticks.length ? log.ticks[0].t / 1e6 : Math.min(...times, Infinity);
  const last = Math.max(...times, first + 1);
  const whole = times.length ? [first, last] : [0, 1];
  const chosen = chooseTime(query, whole[1] - whole[0]);
  return { whole, notes: chosen.notes, isChosen: chosen.from !== null || chosen.to !== null, range: [whole[0] + (chosen.from ?? 0), chosen.to === null ? whole[1] : whole[0] + chosen.to] };
}

function ClusterTracks({ log, window, query, set }) {
  if (log.ticks.length < 2) return html`<p class="quiet">Not enough ticks for charts yet.</p>`;
  const { whole, range } = window;
  const zoom = (from, to) => set(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const shared = { range, onZoom: zoom, spans: [] };
  const inRange = (t) => t >= range[0] && t <= range[1];
  const ticks = sortByTime(log.ticks);
  const times = ticks.map((tick) => tick.t / 1e6);
  const perSecond = (value) => `${formatCount(value)}/s`;
  const logs = { run: log };
  const usage = usageSeries(logs);
  return html`<section aria-labelledby="time"><h2 id="time">Over time</h2>
    <p class="quiet">Drag over a chart to choose a time; the order of events below shows the same.${window.isChosen ? html` <button type="button" onClick=${() => zoom()}>Show everything</button>` : null}</p>
    <${Track} ...${shared} title="Records per second that producers append" height=${130} series=${[{ label: "records", color: "--c0", format: perSecond }]} columns=${[times, rates(ticks, "records_in")]} />
    <${StateTrack} rows=${stateRows(logs, whole[1])} elections=${electionTimes(logs)} shared=${shared} isLast=${!usage.names.length} />
    <${UsageTracks} usage=${usage} shared=${shared} inRange=${inRange} /></section>`;
}

function Partitions({ rows, query, set }) {
  const [count, setCount] = useState(PAGE_ROWS);
  const text = (query.filter || "").toLowerCase();
  const shown = rows.filter((row) => `${row.name} ${row.problem}`.toLowerCase().includes(text));
  const troubled = rows.filter((row) => row.problem).length;
  return html`<section aria-labelledby="partitions"><h2 id="partitions">Partitions</h2>
    ${rows.length ? html`<p>${troubled ? `${formatCount(troubled)} of ${plural(rows.length, "partition")} ${troubled === 1 ? "lacks" : "lack"} a leader or a replica in sync.` : rows.length === 1 ? "The one partition has a leader and all replicas in sync." : `All ${plural(rows.length, "partition")} have a leader and all replicas in sync.`}</p>` : html`<p class="quiet">There is no topic yet.</p>`}
    ${rows.length > 8 ? html`<p class="filter"><label>Filter <input type="search" value=${query.filter || ""} placeholder="topic or problem" onInput=${(event) => set({ filter: event.target.value })} /></label></p>` : null}
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="table: partitions"><table>
      <thead><tr>${["partition", "leader", "epoch", "replicas", "in sync (ISR)", "eligible (ELR)", ""].map((name) => html`<th scope="col">${name || html`<span class="hidden">problem</span>`}</th>`)}</tr></thead>
      <tbody>${shown.slice(0, count).map((row) => html`<tr><td>${row.name}</td><td>${row.leader < 0 ? "none" : row.leader}</td><td>${row.epoch}</td><td>${row.replicas.join(", ")}</td><td>${row.inSync.join(", ") || "none"}</td><td>${row.eligible.join(", ") || "–"}</td><td class=${row.problem ? "parked" : ""}>${row.problem}</td></tr>`)}</tbody></table></div>` : null}
    ${shown.length > count ? html`<button type="button" onClick=${() => setCount(count + PAGE_ROWS)}>Show more of ${plural(shown.length, "partition")}</button>` : null}</section>`;
}
