// Now: a card for each run, cluster and mirror that runs.

import { html, useEffect, useState } from "./vendor.js";
import { openStream } from "./api.js";
import { formatAge, formatBytes, formatCount, formatRate, formatUs, plural } from "./format.js";
import { Sparkline } from "./parts.js";
import { buildAddress, partOf } from "./router.js";
import { addEvents, emptyLog, findCounter, lastRate, rates } from "./series.js";

const KEPT_TICKS = 61;
const STALE_S = 5;

// Everything that runs, and whether the server answers.
export function useNow() {
  const [state, setState] = useState({ things: [], logs: {}, nowUs: 0, receivedMs: 0, isConnected: null });
  useEffect(() => openStream({
    isNow: true,
    onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
    onMessage: (kind, content) => setState((old) => onMessage(old, kind, content)),
  }), []);
  return state;
}

function onMessage(old, kind, content) {
  if (kind === "things") return { ...old, things: content.things, nowUs: content.now_us, receivedMs: Date.now(), isConnected: true };
  const log = addEvents(old.logs[content.thing] || emptyLog(), content.events, content.is_start);
  log.ticks = log.ticks.slice(-KEPT_TICKS);
  return { ...old, logs: { ...old.logs, [content.thing]: log } };
}

export function NowCards({ state }) {
  const whole = state.things.filter((thing) => partOf(thing.id) === "run");
  if (state.isConnected === false) {
    return html`<${Disconnected} /><${Cards} things=${whole} state=${state} />`;
  }
  if (!whole.length) return html`<p class="quiet">Nothing runs now.</p>`;
  return html`<${Cards} things=${whole} state=${state} />`;
}

export function Disconnected() {
  return html`<p class="problem" role="alert">Disconnected: shoal serve does not answer. What you see is old; this page tries again.</p>`;
}

function Cards({ things, state }) {
  return html`<ul class="cards">${things.map((thing) => html`<${Card} key=${thing.id} thing=${thing} log=${state.logs[thing.id] || emptyLog()} state=${state} />`)}</ul>`;
}

function Card({ thing, log, state }) {
  const ageS = Math.max(0, (state.nowUs - thing.written_us) / 1e6);
  const counter = kindOf(thing) === "controller" ? null : findCounter(log.ticks, MAIN_COUNTERS[thing.subject] || []);
  const values = counter ? rates(log.ticks, counter).slice(1) : [];
  const title = html`<span class="kind">${kindOf(thing)}</span> ${thing.name}`;
  return html`<li class="card">
    <h3><a href=${buildAddress(thing.subject, thing.id.slice(thing.id.indexOf(":") + 1))}>${title}</a></h3>
    <p class="sentence">${describeThing(thing, log)}</p>
    <${Sparkline} values=${values} label=${counter ? `${counter} per second in the last minute, now ${formatRate(values[values.length - 1])}` : "no counts yet"} />
    <p class=${ageS > STALE_S ? "age stale" : "age"}>${ageS > STALE_S ? `no data for ${formatAge(ageS)}` : `data ${formatAge(ageS)} old`} · running for ${formatAge((state.nowUs - thing.started_us) / 1e6)}</p>
  </li>`;
}

// A single node is a cluster as that node sees it.
export function kindOf(thing) {
  return (thing.details?.node || thing.subject).split(" ")[0];
}

const MAIN_COUNTERS = {
  run: ["received", "acknowledged", "sent"],
  mirror: ["records", "copied_records", "batches"],
  cluster: ["records_in"],
};

// One sentence on what a thing does now.
export function describeThing(thing, log) {
  const tick = log.ticks[log.ticks.length - 1];
  if (!tick) return "No counts yet.";
  if (thing.subject === "run") return describeRun(log, tick);
  return thing.subject === "mirror" ? describeMirror(log, tick) : describeCluster(thing, log, tick);
}

function describeMirror(log, tick) {
  const { lag, lag_s: lagS, partitions, parked, waiting, paused } = tick.gauges;
  const rate = lastRate(log.ticks, "records");
  const bytes = lastRate(log.ticks, "bytes");
  const held = [["parked", parked], ["waiting", waiting]].filter(([, count]) => count).map(([state, count]) => `${formatCount(count)} ${state}`);
  const reasons = lastStates(log).filter((event) => event.reason && /parked|waiting/.test(event.state)).slice(0, 2);
  return [
    paused ? "Paused." : `Records copied: ${formatRate(rate)}${bytes === null ? "" : ` (${formatBytes(bytes)}/s)`}.`,
    lag === undefined ? "" : lag ? `${plural(lag, "record")} behind${lagS === undefined ? "" : `, ${formatUs(lagS * 1e6)}`}.` : "Nothing behind.",
    held.length ? `Of ${plural(partitions || 0, "partition")}: ${held.join(", ")}.` : "",
    ...reasons.map((event) => `${event.object}: ${event.reason}.`),
  ].filter(Boolean).join(" ");
}

function describeCluster(thing, log, tick) {
  const nodes = lastStates(log).filter((event) => /^(broker|controller) /.test(event.object) && event.state !== "removed");
  const brokers = nodes.filter((event) => event.object.startsWith("broker "));
  const held = nodes.filter((event) => /dead|paused|starting|fenced|behind/.test(event.state)).map((event) => `${event.object} is ${event.state}`);
  const { partitions = 0, offline = 0, under_replicated: lacking = 0 } = tick.gauges;
  const lacks = [offline ? `${formatCount(offline)} without a leader` : "", lacking ? `${formatCount(lacking)} under-replicated` : ""].filter(Boolean).join(", ");
  return [
    `${plural(brokers.length, "broker")}${held.length ? `: ${held.join(", ")}` : ", all running"}.`,
    partitions ? `${plural(partitions, "partition")}, ${lacks || "all in sync"}.` : "",
    kindOf(thing) === "controller" ? "" : `Records appended${thing.details?.node ? " here" : ""}: ${formatRate(lastRate(log.ticks, "records_in"))}.`,
  ].filter(Boolean).join(" ");
}

// The last state of each object.
function lastStates(log) {
  return [...new Map(log.states.map((event) => [event.object, event])).values()];
}

function describeRun(log, tick) {
  const counted = ["sent", "acknowledged", "received"].filter((name) => tick.counters[name] !== undefined);
  const parts = counted.map((name) => `${formatCount(tick.counters[name])} ${name} (${formatRate(lastRate(log.ticks, name))})`);
  const found = Object.values(log.findings).filter((finding) => finding.count);
  const findings = found.map((finding) => `${formatCount(finding.count)} ${finding.finding}`);
  const faults = activeFaults(log.faults);
  return [
    parts.length ? `So far ${parts.join(", ")}.` : "Starting.",
    faults.length ? `${plural(faults.length, "fault")} active: ${faults.join(", ")}.` : "",
    findings.length ? `Findings so far: ${findings.join(", ")}.` : "",
  ].filter(Boolean).join(" ");
}

export function activeFaults(events) {
  const open = new Map();
  for (const event of events) {
    if (event.phase === "begin") open.set(event.id, event.what);
    if (event.phase === "end") open.delete(event.id);
  }
  return [...open.values()];
}
