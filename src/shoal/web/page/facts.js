// The numbers of a judged run: tiles, and a table for everything that the definitions name.

import { html } from "./vendor.js";
import { formatBrief, formatBytes, formatCount, formatLinks, formatRate, formatRatio, formatShare, formatUs, plural } from "./format.js";
import { FactTable, Verdict } from "./parts.js";
import { isPartOf, isRowOf } from "./stages.js";

const RANKS = ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99"];
const STAGE_TITLES = {
  producer_to_source: "producers to source log",
  source_to_target: "source log to target log (the mirror)",
  log_to_consumers: "log to consumers",
};
const LATENCY_TITLES = {
  e2e_intended: "end to end, from the intended send",
  e2e_actual: "end to end, from the actual send",
  producer: "producer, send to acknowledgement",
  replication: "replication, source append to target append",
  staleness: "staleness, known to exist to polled (a lower bound)",
};

// A statistic of the messages owed: lost and pending ones are infinitely late.
export function owedLatency(latency, name) {
  if (!latency) return null;
  if (!latency.undelivered) return latency[name] ?? null;
  if (!RANKS.includes(name)) return "never";
  return latency.owed[name] ?? "never";
}

export function countCopies(metrics) {
  return metrics.deliveries - (metrics.re_reads || 0) - metrics.delivered;
}

// The first numbers that people ask for, each with what it is a share of.
export function Tiles({ group, acks }) {
  const tiles = listTiles(group, acks);
  return html`<dl class="tiles">${tiles.map((tile) => html`<div class=${`tile ${tile.tone || ""}`}><dt>${tile.name}</dt><dd><b>${tile.value}</b><span>${tile.note}</span></dd></div>`)}</dl>`;
}

// {name, value, note, tone} each. Pure.
export function listTiles(group, acks) {
  const { metrics, findings, throughput } = group;
  const latency = metrics.latency_us.e2e_intended;
  const copies = countCopies(metrics);
  const reordered = (findings.reordered || { count: 0 }).count;
  const total = (throughput || []).find((row) => row.topic === null);
  const tail = (latency && latency.count) >= 10000 ? "p99.99" : "max";
  const late = (name) => ({ name: `latency ${name}`, value: formatBrief(owedLatency(latency, name)), note: latency && latency.undelivered ? `${formatCount(latency.undelivered)} never arrived` : "end to end", tone: owedLatency(latency, name) === "never" ? "bad" : "" });
  return [
    ...deliveryTiles(metrics, acks),
    { name: "duplicated", value: formatCount(copies), note: `of ${plural(metrics.deliveries, "delivery", "deliveries")}`, tone: copies ? "warn" : "" },
    { name: "reordered", value: formatCount(reordered), note: metrics.order === null ? "order unknowable" : `order ${formatRatio(metrics.order)}`, tone: reordered ? "warn" : "" },
    ...(latency ? [late("p50"), late("p99"), late(tail)] : []),
    ...(total ? [{ name: "throughput", value: formatRate(total.delivered_per_s), note: total.delivered_bytes_per_s ? `${formatBytes(total.delivered_bytes_per_s)}/s delivered` : "delivered" }] : []),
  ];
}

function deliveryTiles(metrics, acks) {
  const missing = metrics.attempts - metrics.delivered_attempts;
  if (acks === 0) {
    return [
      { name: "delivered", value: formatShare(metrics.harvest), note: `${formatCount(metrics.delivered_attempts)} of ${plural(metrics.attempts, "message")} sent` },
      { name: "not delivered", value: formatCount(missing), note: "not delivered, nothing promised: acks=0", tone: missing ? "warn" : "" },
    ];
  }
  return [
    { name: "delivered", value: formatShare(metrics.completeness), note: `${formatCount(metrics.delivered_ok)} of ${formatCount(metrics.ok)} acknowledged`, tone: metrics.lost_ok ? "bad" : "good" },
    { name: "lost", value: formatCount(metrics.lost), note: metrics.pending ? `${formatCount(metrics.pending)} pending` : "none pending", tone: metrics.lost ? "bad" : "good" },
    { name: "acknowledged", value: formatShare(metrics.yield), note: `of ${plural(metrics.attempts, "attempt")}, ${formatCount(metrics.unknown)} unknown` },
  ];
}

export function Thresholds({ thresholds }) {
  if (!thresholds || !thresholds.length) return null;
  const missed = thresholds.filter((each) => !each.met).length;
  const show = (each) => Object.entries(each.values).map(([group, value]) => `${value === null ? "unknowable" : value === "never" ? value : formatRatio(value)}${Object.keys(each.values).length > 1 ? ` in ${group}` : ""}`).join(", ");
  return html`<section aria-labelledby="thresholds"><h2 id="thresholds">Thresholds${missed ? `: ${missed} of ${thresholds.length} missed` : ": all met"}</h2>
    <ul class="thresholds">${thresholds.map((each) => html`<li class=${each.met ? "met" : "missed"}>${each.met ? "met" : "missed"}: <code>${each.threshold}</code> ${each.metric} is ${show(each)}</li>`)}</ul></section>`;
}

export function Groups({ result, chosen, onChoose }) {
  const names = Object.keys(result.groups);
  if (names.length < 2) return null;
  const rows = names.map((name) => {
    const { verdict, metrics } = result.groups[name];
    const latency = metrics.latency_us.e2e_intended;
    return [
      html`<button type="button" aria-pressed=${name === chosen} onClick=${() => onChoose(name)}>${name}</button>`, html`<${Verdict} word=${verdict} />`, formatCount(metrics.delivered), formatCount(metrics.lost),
      formatRatio(metrics.harvest), formatRatio(metrics.duplication), formatRatio(metrics.order), formatUs(owedLatency(latency, "p50")), formatUs(owedLatency(latency, "p99")),
    ];
  });
  return html`<${FactTable} id="groups" title="Consumer groups" columns=${["group", "verdict", "delivered", "lost", "harvest", "duplication", "order", "p50", "p99"]} rows=${rows} />
    <p class="quiet">Each group is judged separately; the verdict of the run is that of the worst, ${result.worst_group}. Shown below: ${chosen}.${(result.left_out || []).length ? ` ${plural(result.left_out.length, "group")} left out, because the file would be too large.` : ""}</p>`;
}

export function Stages({ group, mirror, stage: chosen }) {
  const rows = Object.entries(group.stages).filter(([name]) => isRowOf(chosen, name)).map(([name, stage]) => [STAGE_TITLES[name] || name, html`<${Verdict} word=${stage.verdict} />`, stage.findings.join(", ") || "–"]);
  if (!rows.length) return null;
  const used = mirror && mirror.usage;
  const kind = mirror ? ["kind", "mode", "delivery"].map((key) => mirror[key]).filter(Boolean).join(", ") : "";
  const joined = mirror && mirror.rebatched ? `; ${formatCount(mirror.rebatched)} batches were joined into larger ones` : "";
  return html`<${FactTable} id="stages" title="Stage by stage" columns=${["stage", "verdict", "because of"]} rows=${rows} />
    ${used ? html`<p class="quiet">The mirror (${kind}${joined}) used ${used.cpu_s.toFixed(2)} CPU seconds and ${formatBytes(used.peak_memory_bytes)} of memory at most.</p>` : null}`;
}

export function Metrics({ group }) {
  const { metrics } = group;
  const rows = [
    ["yield", formatRatio(metrics.yield), `${formatCount(metrics.ok)} acknowledged of ${plural(metrics.attempts, "attempt")}, ${formatCount(metrics.unknown)} unknown`],
    ["harvest", formatRatio(metrics.harvest), `${formatCount(metrics.delivered_attempts)} received of ${plural(metrics.attempts, "attempt")}`],
    ["completeness", formatRatio(metrics.completeness), `${formatCount(metrics.delivered_ok)} received of ${formatCount(metrics.ok)} acknowledged`],
    ["duplication", formatRatio(metrics.duplication), `${formatCount(countCopies(metrics))} copies of ${plural(metrics.deliveries, "delivery", "deliveries")}`],
    ["re-read rate", formatRatio(metrics.re_read_rate), `${formatCount(metrics.re_reads)} of ${plural(metrics.deliveries, "delivery", "deliveries")}`],
    ["order", formatRatio(metrics.order), `F = ${formatCount(metrics.F)} of at most ${formatCount(metrics.F_limit)}, K = ${formatCount(metrics.K)}`],
    ...Object.entries(metrics.range_us || {}).filter(([, value]) => value !== null).map(([name, value]) => [`range of ${name} times`, formatUs(value), "latest − earliest"]),
  ];
  return html`<${FactTable} id="metrics" title="Metrics and ranges" columns=${["metric", "value", "from"]} rows=${rows} />
    <p class="quiet">${formatCount(metrics.unknown)} attempts ended with an unknown outcome, ${formatCount(metrics.recovered)} of which were delivered; ${formatCount(metrics.failed)} failed. ${lossBound(metrics)}</p>`;
}

function lossBound(metrics) {
  const [message, batch] = [metrics.loss_rate_bound_95, metrics.batch_loss_rate_bound_95];
  if (message === null || message === undefined) return "";
  const ofBatches = batch === null || batch === undefined ? "" : `, and below ${Number(batch.toPrecision(2))} if batches were: ${formatCount(metrics.batches)} of them, messages sent or acknowledged together`;
  return `With no loss seen, the loss rate is below ${Number(message.toPrecision(2))} with 95 % confidence if messages were lost independently of each other${ofBatches}.`;
}

export function Latencies({ group }) {
  const { metrics } = group;
  const rows = Object.entries(metrics.latency_us).map(([name, latency]) => [LATENCY_TITLES[name] || name, formatCount(latency.count), formatUs(latency.mean), ...RANKS.map((rank) => formatUs(owedLatency(latency, rank))), formatUs(owedLatency(latency, "max"))]);
  if (!rows.length) return null;
  const owed = metrics.lost + metrics.pending;
  return html`<${FactTable} id="latencies" title="Latency" columns=${["latency", "messages", "mean of arrived", ...RANKS, "max"]} rows=${rows} />
    <p class="quiet">Exact values of first deliveries. End-to-end percentiles and the maximum are those of all messages owed: ${formatCount(owed)} lost or pending messages count as infinitely late, "never". ${describeSkew(metrics.clock_skew_us)}</p>`;
}

function describeSkew(skew) {
  if (!skew) return "The clocks of producers and consumers were not compared, so the error of the end-to-end latencies is unknown.";
  if (!skew[0] && !skew[1]) return "";
  const [low, high] = skew.map((bound) => `${bound < 0 ? "" : "+"}${(bound / 1000).toFixed(3)} ms`);
  return `The consumers' clocks were ahead of the producers' clocks by ${low} to ${high}: the true end-to-end latencies are lower by this amount.`;
}

export function Throughput({ group }) {
  const rows = (group.throughput || []).map((row) => [row.topic ?? "all topics", formatRate(row.sent_per_s), speed(row.sent_bytes_per_s), formatRate(row.delivered_per_s), speed(row.delivered_bytes_per_s)]);
  if (!rows.length) return null;
  return html`<${FactTable} id="throughput" title="Throughput" columns=${["topic", "sent", "bytes sent", "delivered", "bytes delivered"]} rows=${rows} />`;
}

function speed(value) {
  return value === null || value === undefined ? "–" : `${formatBytes(value)}/s`;
}

// Faults by what happened to the messages that were due while each was active.
export function FaultTable({ result, group, stage }) {
  if (!group.windows || !group.windows.length) return null;
  const faults = new Map(result.faults.map((fault) => [fault.fault, fault]));
  const start = group.series ? group.series.start_s : 0;
  const isShown = (fault) => !fault || isPartOf(stage, `${fault.name} ${fault.target}`);
  const rows = group.windows.filter((window) => isShown(faults.get(window.fault))).map((window) => faultRow(window, faults.get(window.fault), start));
  const found = group.windows.filter((window) => window.fault !== null && Object.keys(window.findings).length).map((window) => `fault ${window.fault}: ${Object.entries(window.findings).map(([name, count]) => `${formatCount(count)} ${name}`).join(", ")}`);
  return html`<${FactTable} id="faults" title="Faults" columns=${["fault", "target", "time", "detect", "recover", "drain", "messages", "lost", "copies", "reordered", "yield", "p99"]} rows=${rows} />
    <p class="quiet">Each row is about the messages whose intended send is during the fault. Detect: from its begin to the first message that was lost, refused, unanswered or slower than every message of the 10 s before. Recover: from its begin until messages fare as before again. Drain: from its end until all messages intended before it have arrived.${found.length ? ` Findings among them: ${found.join("; ")}.` : ""}</p>`;
}

function faultRow(window, fault, start) {
  const counts = window.metrics;
  const cells = [formatCount(counts.attempts), formatCount(counts.lost), formatCount(countCopies(counts)), formatCount(window.findings.reordered || 0), formatRatio(counts.yield), formatUs(owedLatency(counts.latency_us.e2e_intended, "p99"))];
  if (!fault) return ["no fault", "", "", "", "", "", ...cells];
  const isFelt = window.time_to_detect_us !== null;
  const time = (value, otherwise) => (value === null ? otherwise : formatUs(value));
  const seconds = (us) => `${(us / 1e6 - start).toFixed(1)} s`;
  return [
    `${fault.fault} ${fault.name}`, formatLinks(fault.target),
    fault.ended_us === null ? `from ${seconds(fault.began_us)}` : `${seconds(fault.began_us)} to ${seconds(fault.ended_us)}`,
    time(window.time_to_detect_us, "not felt"), time(window.time_to_recover_us, isFelt ? "never" : ""), time(window.time_to_drain_us, ""), ...cells,
  ];
}
