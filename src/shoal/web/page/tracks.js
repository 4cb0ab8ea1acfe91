// The tracks of a run over one time axis: faults, rate, latency, lanes, states, CPU and memory.
// Where a stage is chosen they show what belongs to it; in a replay, what had happened.

import { html } from "./vendor.js";
import { Track, paintRows, rowAxis } from "./charts.js";
import { heatColor, readColor } from "./colors.js";
import { formatBytes, formatClock, formatCount, formatRate, formatUs } from "./format.js";
import { busiest, electionTimes, faultRows, faultSpans, laneRows, latencyRange, percentileSeries, smoothRates, stateRows, usageSeries } from "./model.js";
import { DataTable } from "./parts.js";
import { cutBins, cutLogs, cutRows, cutSpans } from "./replay.js";
import { bucketEnd, bucketStart } from "./series.js";
import { isPartOf, isRateOf, lanesOf, logsOf } from "./stages.js";

// Of a rate that is drawn; shorter bins are averaged.
const LEAST_RATE_S = 0.1;
const LINES = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];

// `times` is the chosen stretch {from, to} in seconds from the start, `stage` what was chosen in the
// flow, `moment` where a replay stands; all may be null.
export function Tracks({ bins, lanes, laneStart, logs, resultFaults, windows, thresholds, times, stage, moment, onZoom, isSoFar, children }) {
  const whole = wholeRange(bins, logs);
  const until = (rows) => (moment === null ? rows : cutRows(rows, moment));
  const past = moment === null ? logs : cutLogs(logs, moment);
  const all = faultSpans(resultFaults, logs.run ? logs.run.faults : [], whole[1], windows).filter((fault) => isPartOf(stage, fault.what));
  const faults = moment === null ? all : cutSpans(all, moment);
  const range = [whole[0] + (times.from ?? 0), times.to === null ? whole[1] : whole[0] + times.to];
  const zoom = (from, to) => onZoom(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const shared = { range, onZoom: zoom, spans: faults.map((fault) => [fault.from, fault.to]), cursor: moment };
  const note = isSoFar ? ", so far" : "";
  const inRange = (t) => t >= range[0] && t <= range[1];
  const own = logsOf(stage, past);
  const usage = usageSeries(own);
  const states = stateRows(own, Math.min(whole[1], moment ?? Infinity));
  const shownLanes = lanesOf(stage, lanes);
  const shownBins = moment === null ? bins : cutBins(bins, moment);
  // The lowest track has the time axis.
  const lowest = usage.names.length ? "usage" : states.length ? "states" : shownLanes.length ? "lanes" : "latency";
  return html`<section aria-labelledby="time"><h2 id="time">Over time${note}</h2>
    ${children}
    <p class="quiet">Drag over a chart to zoom; double-click to see everything.
      ${times.from !== null || times.to !== null ? html` <button type="button" onClick=${() => zoom()}>Show everything</button>` : null}</p>
    ${faults.length ? html`<${FaultTrack} faults=${faults} shared=${shared} />` : html`<p class="quiet">No faults${stage ? " of this stage" : ""}${note}.</p>`}
    <${RateTrack} bins=${shownBins} stage=${stage} shared=${shared} note=${note} inRange=${inRange} />
    <${LatencyTrack} bins=${shownBins} bounds=${latencyRange(bins)} limits=${latencyLimits(thresholds)} shared=${shared} note=${note} inRange=${inRange} isLast=${lowest === "latency"} />
    ${shownLanes.length ? html`<${LaneTrack} rows=${until(laneRows(shownLanes, laneStart))} shared=${shared} isLast=${lowest === "lanes"} />` : null}
    ${stage && lanes.length && !shownLanes.length ? html`<p class="quiet">None of the lanes has a finding of this stage.</p>` : null}
    <${StateTrack} rows=${states} elections=${electionTimes(own)} shared=${shared} isLast=${lowest === "states"} />
    <${UsageTracks} usage=${usage} shared=${shared} inRange=${inRange} />
  </section>`;
}

export function wholeRange(bins, logs) {
  const half = bins.seconds / 2;
  const times = bins.times.length ? [bins.times[0] - half, bins.times[bins.times.length - 1] + half] : [];
  const ticks = times.length ? [] : Object.values(logs).flatMap((log) => log.ticks.map((tick) => tick.t / 1e6));
  const all = [...times, ...ticks];
  const [low, high] = all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
  return [low, Math.max(high, low + 0.5)];
}

function FaultTrack({ faults, shared }) {
  const rows = faultRows(faults);
  const isWhole = rows.length === faults.length;
  const cells = () => faults.map((fault) => [fault.what, formatClock(fault.from * 1e6), formatClock(fault.to * 1e6), fault.phases.map(([phase, t]) => `${phase} ${describePhase(fault, phase, t)}`).join(", ") || "–"]);
  return html`<${Track} ...${shared} title=${isWhole ? "Faults; triangles: detected, recovered, drained" : `Faults: ${formatCount(faults.length)}, a row for each kind; the table has each, and when it was detected`} height=${24 + (isWhole ? 40 : 24) * rows.length} series=${[]} columns=${[shared.range]} ...${rowAxis(rows)} paint=${(u, ctx) => paintRows(u, ctx, rows)} />
    <${DataTable} caption="faults" columns=${["fault", "began", "ended", "phases"]} rows=${cells} />`;
}

function describePhase(fault, phase, t) {
  return phase === "drained" && t >= fault.to ? `${(t - fault.to).toFixed(2)} s after its end` : `after ${(t - fault.from).toFixed(2)} s`;
}

function RateTrack({ bins, stage, shared, note, inRange }) {
  const series = [
    { label: "due", color: "--c2", format: formatRate },
    { label: "acknowledged", color: "--c0", format: formatRate },
    { label: "received", color: "--c1", format: formatRate },
  ].filter((each) => isRateOf(stage, each.label));
  if (!series.length) return html`<p class="quiet">Messages per second are not counted at this stage.</p>`;
  const values = series.map((each) => bins[each.label]);
  const hasBoth = series.length === 3;
  const drawn = values.map((each) => smoothRates(each, bins.seconds, LEAST_RATE_S));
  const over = bins.seconds < LEAST_RATE_S ? `, means over ${LEAST_RATE_S} s` : "";
  const rows = () => bins.times.map((t, place) => [t, ...values.map((each) => each[place])]).filter(([t]) => inRange(t)).map(([t, ...each]) => [formatClock(t * 1e6), ...each.map(formatRate)]);
  return html`<${Track} ...${shared} title=${`Messages per second${over}${note}${hasBoth ? "; the gap between acknowledged and received is filled" : ""}`} height=${170} series=${series}
      columns=${[bins.times, ...drawn]} bands=${hasBoth ? [{ series: [2, 3], fill: "--gap" }] : []} />
    <${DataTable} caption="messages per second" columns=${["time (UTC)", ...series.map((each) => each.label)]} rows=${rows} />`;
}

function LatencyTrack({ bins, bounds, limits, shared, note, inRange, isLast }) {
  const [p50, p99] = [percentileSeries(bins, 50), percentileSeries(bins, 99)];
  const most = Math.max(1, ...bins.latency.map((buckets) => Math.max(0, ...Object.values(buckets))));
  const paint = (u, ctx) => { paintHeat(u, ctx, bins, bounds, most); paintLimits(u, ctx, limits); };
  const series = [{ label: "p50", color: "--c1", format: formatUs }, { label: "p99", color: "--c3", format: formatUs }];
  const rows = () => bins.times.map((t, place) => [t, p50[place], p99[place], bins.never[place]]).filter(([t]) => inRange(t)).map(([t, low, high, never]) => [formatClock(t * 1e6), formatUs(low), formatUs(high), formatCount(never)]);
  const labels = (u, splits) => splits.map((value) => (value <= bounds.high ? formatUs(value) : ""));
  return html`<${Track} ...${shared} title=${`Latency from the intended send, log scale${note}; darker: more messages${bounds.hasNever ? "; red at the top: never arrived" : ""}`} height=${isLast ? 250 : 220} isLast=${isLast}
      series=${series} columns=${[bins.times, p50, p99]} yKind="log" yRange=${[bounds.low, bounds.limit]} yLabels=${labels} ySplits=${() => roundLatencies(bounds.low, bounds.high)} paint=${paint} />
    <${DataTable} caption="latency" columns=${["time (UTC)", "p50", "p99", "never"]} rows=${rows} />`;
}

// Thresholds on latencies: [[text, µs]].
function latencyLimits(thresholds) {
  const found = (thresholds || []).map((each) => [each.threshold, /latency_(us|ms|s)_\w+ *<=? *([\d.]+)/.exec(each.threshold)]);
  return found.filter(([, match]) => match).map(([text, match]) => [text, Number(match[2]) * { us: 1, ms: 1e3, s: 1e6 }[match[1]]]);
}

function paintLimits(u, ctx, limits) {
  ctx.strokeStyle = ctx.fillStyle = readColor("--bad");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const [text, value] of limits) {
    const y = u.valToPos(value, "y", true);
    ctx.beginPath();
    ctx.moveTo(u.bbox.left, y);
    ctx.lineTo(u.bbox.left + u.bbox.width, y);
    ctx.stroke();
    ctx.fillText(text, u.bbox.left + 4, y - 2);
  }
  ctx.setLineDash([]);
}

// Powers of ten; over a short range also 2 and 5 times those.
function roundLatencies(low, high) {
  const factors = high / low < 200 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    found.push(...factors.map((factor) => factor * 10 ** power).filter((value) => value >= low && value <= high));
  }
  return found;
}

function paintHeat(u, ctx, bins, bounds, most) {
  const half = bins.seconds / 2;
  bins.times.forEach((t, place) => {
    if (t + half < u.scales.x.min || t - half > u.scales.x.max) return;
    const left = u.valToPos(t - half, "x", true);
    const width = Math.max(1, u.valToPos(t + half, "x", true) - left);
    for (const [bucket, count] of Object.entries(bins.latency[place])) {
      const top = u.valToPos(bucketEnd(Number(bucket)), "y", true);
      const bottom = u.valToPos(Math.max(bounds.low, bucketStart(Number(bucket))), "y", true);
      ctx.fillStyle = heatColor(Math.log1p(count) / Math.log1p(most));
      ctx.fillRect(left, top, width, Math.max(1, bottom - top));
    }
    if (bins.never[place]) {
      ctx.fillStyle = readColor("--bad");
      ctx.fillRect(left, u.bbox.top, Math.max(3, width), 12 * devicePixelRatio);
    }
  });
  if (bounds.hasNever) {
    ctx.fillStyle = readColor("--text");
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.fillText("never", u.bbox.left + 4, u.bbox.top + 1);
  }
}

function LaneTrack({ rows, shared, isLast }) {
  const found = (lane) => Object.entries(lane.findings).map(([name, count]) => `${name}: ${formatCount(count)}`).join(", ") || "none";
  return html`<${Track} ...${shared} title=${`Lanes, the worst ${rows.length} first, by intended send; the height of the red is the share of messages with a finding`} height=${(isLast ? 48 : 16) + 20 * rows.length} isLast=${isLast} series=${[]} columns=${[shared.range]} ...${rowAxis(rows)} paint=${(u, ctx) => paintRows(u, ctx, rows)} />
    <${DataTable} caption="lanes" columns=${["producer", "topic", "lane", "due", "affected", "findings"]} rows=${() => rows.map(({ lane }) => [lane.producer, lane.topic, lane.lane, formatCount(lane.due), formatCount(lane.affected), found(lane)])} />`;
}

export function StateTrack({ rows, elections, shared, isLast }) {
  if (!rows.length) return html`<p class="quiet">No states of brokers here.</p>`;
  const all = elections.length ? [...rows, { label: "elections", spans: [], marks: elections.map((each) => each.t) }] : rows;
  const cells = () => rows.flatMap((row) => row.spans.map((span) => [row.label, formatClock(span.from * 1e6), span.text, span.reason || "–"]));
  return html`<${Track} ...${shared} title="Brokers and controllers by state; triangles: elections" height=${(isLast ? 48 : 16) + 18 * all.length} isLast=${isLast} series=${[]} columns=${[shared.range]} ...${rowAxis(all)} paint=${(u, ctx) => paintRows(u, ctx, all)} />
    <${DataTable} caption="states and elections" columns=${["object", "from", "state", "reason"]} rows=${() => [...cells(), ...elections.map((each) => ["election", formatClock(each.t * 1e6), each.what, "–"])]} />`;
}

export function UsageTracks({ usage, shared, inRange }) {
  if (!usage.names.length) return html`<p class="quiet">No CPU and memory of processes here.</p>`;
  // More lines would repeat colours.
  const drawn = busiest(usage, LINES.length);
  const which = drawn.names.length < usage.names.length ? `the ${drawn.names.length} busiest of ${formatCount(usage.names.length)} processes` : "each process";
  const series = (format) => drawn.names.map((label, place) => ({ label, color: LINES[place], format }));
  const cores = (value) => `${value.toFixed(2)} cores`;
  const bytes = (u, splits) => splits.map((value) => (value === null ? "" : formatBytes(value)));
  const rows = () => usage.times.flatMap((t, place) => (inRange(t) ? usage.names.map((name, row) => [formatClock(t * 1e6), name, usage.cpu[row][place], usage.memory[row][place]]) : []));
  return html`<${Track} ...${shared} title=${`CPU of ${which} (cores)`} height=${130} series=${series(cores)} columns=${[usage.times, ...drawn.cpu]} />
    <${Track} ...${shared} title=${`Memory of ${which}`} height=${150} series=${series(formatBytes)} columns=${[usage.times, ...drawn.memory]} yLabels=${bytes} isLast=${true} />
    <${DataTable} caption="CPU and memory" columns=${["time (UTC)", "process", "cores", "memory"]} rows=${() => rows().filter(([, , cpu, memory]) => cpu !== null || memory !== null).map(([t, name, cpu, memory]) => [t, name, cpu === null ? "–" : cpu.toFixed(2), formatBytes(memory)])} />`;
}
