// One run: its verdict, the flow of its messages, its tracks over time, findings and environment.

import { html, useEffect, useState } from "./vendor.js";
import { getJson, openStream } from "./api.js";
import { chooseMoment, chooseOne, chooseTime } from "./choices.js";
import { FaultTable, Groups, Latencies, Metrics, Stages, Thresholds, Throughput, Tiles } from "./facts.js";
import { FlowDiagram, PercentileCurves, STAGE_NAMES } from "./flow.js";
import { describeValue, formatCount, formatTime, formatUs, plural } from "./format.js";
import { binsOfPage, binsOfTicks, curveOfBins } from "./model.js";
import { Displacement } from "./displacement.js";
import { DataTable, Notes, Problem, Verdict, WayBack } from "./parts.js";
import { Player, useReplay } from "./player.js";
import { cutLog, flowOfLog } from "./replay.js";
import { buildAddress, partOf, replaceQuery } from "./router.js";
import { addEvents, emptyLog } from "./series.js";
import { isFindingOf } from "./stages.js";
import { ActionButton, useActions } from "./things.js";
import { Tracks, wholeRange } from "./tracks.js";

const PARTS = ["", "/source", "/target", "/mirror"];

export function Run({ address }) {
  const state = useRun(address.name);
  const { run, page, logs, problem, isConnected } = state;
  const mayAct = useActions();
  if (!run) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1>${run.summary.run}</h1>
    ${problem ? html`<${Problem} text=${`${problem}: what you see is old`} />` : null}
    ${isConnected === false ? html`<${Problem} text="Disconnected: shoal serve does not answer. What you see is old; this page tries again." />` : null}
    <${PartLinks} name=${address.name} logs=${logs} />
    ${mayAct && run.summary.state === "running" ? html`<p class="actions"><${ActionButton} body=${{ thing: `run:${address.name}`, action: "stop" }} label="Stop" title="stop this run: it drains and is judged" done="It drains and is judged." /></p>` : null}
    <${RunBody} run=${run} page=${page} logs=${logs} address=${address} link=${(witness) => lifeLink(witness, address.name)} />
  </main>`;
}

// The pages of its clusters and of its mirror, if those wrote events.
function PartLinks({ name, logs }) {
  const parts = [["source", "cluster"], ["target", "cluster"], ["mirror", "mirror"]].filter(([part]) => logs[part] && logs[part].meta);
  return parts.length ? html`<p class="quiet">More about its ${parts.map(([part, place], at) => html`${at ? ", " : ""}<a href=${buildAddress(place, `${name}/${part}`)}>${part}</a>`)}.</p>` : null;
}

// Everything about a run, from its data; the page and the report show the same. `link` returns where
// a witness leads.
export function RunBody({ run, page, logs, address, link }) {
  const isRunning = run.summary.state === "running";
  const set = (changes) => replaceQuery(address, changes);
  const { result } = run;
  const log = logs.run || emptyLog();
  const group = result ? chooseOne(address.query.group, Object.keys(result.groups), { what: "consumer group", fallback: `${result.worst_group} is shown`, otherwise: result.worst_group }) : { value: "", notes: [] };
  const judged = result && result.groups[group.value];
  const drawn = page && (group.value ? (Object.hasOwn(page.groups, group.value) ? page.groups[group.value] : null) : Object.values(page.groups)[0]);
  const bins = drawn ? binsOfPage(drawn.bins) : binsOfTicks(log.ticks);
  const [start, end] = wholeRange(bins, logs);
  const times = chooseTime(address.query, end - start);
  const canReplay = !isRunning && log.ticks.length > 1;
  const moment = chooseMoment(canReplay ? address.query.at : "", end - start);
  const replay = useReplay(moment.at, end - start, (at) => set({ at: at === null ? "" : at.toFixed(2) }));
  const past = replay.at === null ? log : cutLog(log, start + replay.at);
  const flow = drawn ? drawn.flow.stages.map((stage) => ({ stage: stage.name, count: stage.count, lost: stage.lost, copies: stage.duplicated })) : flowOfRun(run, log);
  const stages = replay.at === null ? flow : flowOfLog(past);
  const stage = chooseOne(address.query.stage, flow.map((each) => each.stage), { what: "stage", fallback: "all stages are shown" });
  return html`
    <${Head} run=${run} log=${log} isRunning=${isRunning} />
    <${Notes} notes=${[...group.notes, ...stage.notes, ...times.notes, ...moment.notes]} />
    ${judged ? html`<${Tiles} group=${judged} acks=${run.manifest.acks} /><${Thresholds} thresholds=${result.thresholds} />
      <${Groups} result=${result} chosen=${group.value} onChoose=${(name) => set({ group: name })} />` : null}
    ${stages.length ? html`<${FlowDiagram} stages=${stages} chosen=${stage.value} onChoose=${(name) => set({ stage: name })} note=${isRunning ? ", so far" : replay.at === null ? "" : `, ${replay.at.toFixed(1)} s after the start`} />` : null}
    ${stage.value ? html`<${FilterNote} stage=${stage.value} onClear=${() => set({ stage: "" })} />` : null}
    ${judged ? html`<${Stages} group=${judged} mirror=${result.mirror} stage=${stage.value} /><${Findings} group=${judged} stage=${stage.value} link=${link} />` : html`<${FindingsSoFar} log=${past} isRunning=${isRunning} stage=${stage.value} />`}
    ${judged && page && !drawn ? html`<p class="quiet">The data behind the charts of group ${group.value} was left out, because it would be too large.</p>` : null}
    <${Tracks} bins=${bins} lanes=${drawn ? drawn.lanes : []} laneStart=${drawn ? drawn.bins.start_us / 1e6 : 0} logs=${logs} resultFaults=${result && result.faults} windows=${judged && judged.windows} thresholds=${result && result.thresholds}
      times=${times} stage=${stage.value} moment=${replay.at === null ? null : start + replay.at} onZoom=${({ from, to }) => set({ from, to })} isSoFar=${isRunning}>
      ${canReplay ? html`<${Player} replay=${replay} log=${past} />` : null}</${Tracks}>
    ${judged && (!stage.value || stage.value === "received") ? html`<${Displacement} group=${judged} />` : null}
    ${judged ? html`<${FaultTable} result=${result} group=${judged} stage=${stage.value} />` : null}
    <${Curves} curves=${drawn ? drawn.curves : curveOfBins(bins, isRunning ? "so far" : "whole")} />
    ${judged ? html`<${Metrics} group=${judged} /><${Latencies} group=${judged} /><${Throughput} group=${judged} />` : null}
    <${Environment} manifest=${run.manifest} />`;
}

function FilterNote({ stage, onClear }) {
  return html`<p class="note" role="status">Only what belongs to <b>${STAGE_NAMES[stage]}</b> is shown of: verdicts by stage, findings, faults, messages per second, lanes, brokers and processes. Latencies and metrics are of all messages.
    <button type="button" onClick=${onClear}>Show all stages</button></p>`;
}

function lifeLink({ topic, producer, lane, sequence }, name) {
  return html`<a href=${buildAddress("life", name, { topic, producer, lane, sequence })}>Follow this message</a>`;
}

// Loads a run and its events; follows them while it runs, and loads it again when it is judged.
function useRun(name) {
  const [state, setState] = useState({ run: null, page: null, logs: {}, problem: "", isConnected: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isGone = false;
    let close = () => null;
    const merge = (id, events, isStart) => setState((old) => {
      const part = partOf(id);
      return { ...old, logs: { ...old.logs, [part]: addEvents(old.logs[part] || emptyLog(), events, isStart) } };
    });
    load(name, merge).then(({ run, page, positions }) => {
      if (isGone) return;
      setState((old) => ({ ...old, run, page, problem: "" }));
      if (run.summary.state !== "running") return;
      close = openStream({
        positions,
        onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
        onMessage: (kind, content) => {
          if (kind === "events") merge(content.thing, content.events, content.is_start);
          else if (!content.things.some((thing) => thing.id === `run:${name}`)) { close(); setRound((old) => old + 1); }
        },
      });
      if (isGone) close();
    }, (error) => setState((old) => ({ ...old, problem: error.message })));
    return () => { isGone = true; close(); };
  }, [name, round]);
  return state;
}

async function load(name, merge) {
  const run = await getJson(`runs/${encodeURIComponent(name)}`);
  const stored = run.result ? await getJson(`runs/${encodeURIComponent(name)}/page`).catch(() => null) : null;
  const page = stored && stored.groups ? stored : null;
  const positions = {};
  for (const part of PARTS) {
    const id = `run:${name}${part}`;
    let position = "";
    for (;;) {
      const chunk = await getJson(`events?thing=${encodeURIComponent(id)}&position=${position}`);
      if (chunk.position === null) break;
      if (chunk.events.length || chunk.is_start) merge(id, chunk.events, chunk.is_start);
      position = chunk.position;
      positions[id] = position;
      if (!chunk.has_more) break;
    }
    if (!(id in positions)) positions[id] = "";
  }
  return { run, page, positions };
}

function Head({ run, log, isRunning }) {
  const { summary } = run;
  if (isRunning) return html`<p class="sentence big"><span class="verdict none">running</span> ${countSoFar(log)}</p>`;
  return html`<p class="sentence big"><${Verdict} word=${summary.verdict} /> ${summary.sentence || `Not judged: ${summary.state}. Judge it with shoal audit.`}</p>`;
}

function countSoFar(log) {
  const tick = log && log.ticks[log.ticks.length - 1];
  if (!tick) return "No counts yet.";
  const names = ["sent", "acknowledged", "received"].filter((name) => tick.counters[name] !== undefined);
  return `So far ${names.map((name) => `${formatCount(tick.counters[name])} ${name}`).join(", ")}.`;
}

function flowOfRun(run, log) {
  return run.summary.numbers ? run.summary.numbers.flow : flowOfLog(log);
}

function Findings({ group, stage, link }) {
  const all = Object.entries(group.findings);
  const shown = all.filter(([finding]) => isFindingOf(stage, finding));
  return html`<section aria-labelledby="findings"><h2 id="findings">Findings${stage ? ` at: ${stage}` : ""}</h2>
    ${all.length ? null : html`<p>None.</p>`}
    ${all.length && !shown.length ? html`<p class="quiet">None of the ${plural(all.length, "finding")} belongs to this stage.</p>` : null}
    <ul class="findings">${shown.map(([finding, found]) => html`<li><b>${finding}</b>: ${formatCount(found.count)} in ${plural(found.streams, "stream")}
      ${found.witness ? html`<${Witness} witness=${found.witness} link=${link} />` : null}</li>`)}</ul></section>`;
}

function Witness({ witness, link }) {
  const hasName = ["topic", "producer", "lane", "sequence"].every((key) => witness[key] !== undefined);
  return html`<div class="witness">for example ${Object.entries(witness).map(([key, value]) => html`<span>${key.replace(/_us$/, "")} <code>${describeValue(value, key)}</code></span> `)}${hasName ? link(witness) : null}</div>`;
}

function FindingsSoFar({ log, isRunning, stage }) {
  const found = Object.values(log.findings).filter((each) => isFindingOf(stage, each.finding));
  return html`<section aria-labelledby="findings"><h2 id="findings">${isRunning ? "Findings so far" : "Findings while it ran"}</h2>
    ${found.length ? html`<ul class="findings">${found.map((each) => html`<li><b>${each.finding}</b>: ${formatCount(each.count)}${isRunning ? " so far" : ""}${each.is_certain ? "" : ", not certain yet"}</li>`)}</ul>` : html`<p>None.</p>`}</section>`;
}

function Curves({ curves }) {
  if (!curves.length) return null;
  const rows = curves.flatMap((curve) => curve.points.map(([percent, value]) => [curve.phase, `p${percent}`, value === null ? "never" : formatUs(value)]));
  return html`<section aria-labelledby="curves"><h2 id="curves">Latency by percentile</h2><${PercentileCurves} curves=${curves} />
    <${DataTable} caption="latency by percentile" columns=${["phase", "percentile", "latency"]} rows=${rows} /></section>`;
}

const SETTING_NAMES = { faults: "planned faults", started_us: "started (UTC)", measure_from_us: "measured from (UTC)", master: "Spark master" };

function Environment({ manifest }) {
  const rows = Object.entries(manifest).filter(([name, value]) => !["state", "run", "format", "driver"].includes(name) && value !== null);
  const show = (name, value) => {
    if (name === "started_us" || name === "measure_from_us") return formatTime(value);
    if (name === "warm_up_us") return formatUs(value);
    if (name === "acks") return String(value) === "-1" ? "all" : value;
    if (name === "command" && Array.isArray(value)) return value.join(" ");
    return describeValue(value, name);
  };
  return html`<section aria-labelledby="environment"><h2 id="environment">Environment</h2><div class="scroll" tabindex="0" role="region" aria-label="table: environment"><table class="facts">
    <tbody>${rows.map(([name, value]) => html`<tr><th scope="row">${SETTING_NAMES[name] || name.replace(/_us$/, "").replaceAll("_", " ")}</th><td>${show(name, value)}</td></tr>`)}</tbody></table></div></section>`;
}
