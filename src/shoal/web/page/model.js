// One model of a run for its page, from the stored page data of a finished run or from the events
// of a running one. Pure. Times are seconds since the Unix epoch.

import { addBuckets, bucketEnd, percentile, sortByTime } from "./series.js";

const MOST_LANES = 20;
const LONGEST_GAP_S = 5;
const MOST_FAULT_ROWS = 12;

// {from, to, times, due, acknowledged, received, latency, never}: rates for each bin.
export function binsOfPage(bins) {
  const seconds = bins.bin_us / 1e6;
  const start = bins.start_us / 1e6;
  const perSecond = (counts) => counts.map((count) => count / seconds);
  return {
    times: bins.due.map((_, place) => start + (place + 0.5) * seconds),
    seconds,
    due: perSecond(bins.due),
    acknowledged: perSecond(bins.acknowledged),
    received: perSecond(bins.received),
    latency: bins.latency,
    never: bins.never,
  };
}

// Rates of bins shorter than `leastS` as means over that time around each: one batch in a bin of
// 10 ms would be the only thing to see. Pure.
export function smoothRates(values, seconds, leastS) {
  const reach = Math.ceil(leastS / seconds / 2 - 0.5);
  if (reach < 1) return values;
  return values.map((value, place) => {
    const near = values.slice(Math.max(0, place - reach), place + reach + 1).filter((each) => each !== null && each !== undefined);
    return value === null || value === undefined ? value : near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}

const NAMES = { due: ["due", "sent"], acknowledged: ["acknowledged"], received: ["received"] };

export function binsOfTicks(written) {
  const ticks = sortByTime(written);
  const pairs = ticks.slice(1).map((tick, place) => [ticks[place], tick]).filter(([before, tick]) => tick.t > before.t);
  const rate = (names) => pairs.map(([before, tick]) => {
    const name = names.find((each) => tick.counters[each] !== undefined && before.counters[each] !== undefined);
    return name && tick.counters[name] >= before.counters[name] ? ((tick.counters[name] - before.counters[name]) * 1e6) / (tick.t - before.t) : null;
  });
  return {
    times: pairs.map(([, tick]) => tick.t / 1e6),
    seconds: 1,
    due: rate(NAMES.due),
    acknowledged: rate(NAMES.acknowledged),
    received: rate(NAMES.received),
    latency: pairs.map(([, tick]) => latencyOf(tick)),
    never: pairs.map(() => 0),
  };
}

function latencyOf(tick) {
  const name = ["end_to_end", "latency", "e2e"].find((each) => tick.histograms[each]) || Object.keys(tick.histograms)[0];
  return name ? tick.histograms[name].buckets : {};
}

export function percentileSeries(bins, percent) {
  return bins.latency.map((buckets, place) => {
    const value = percentile(buckets, percent, bins.never[place]);
    return value === "never" ? null : value;
  });
}

// Fault spans from the result of a finished run, or from events: [{from, to, what, phases}].
// `windows` are those of a group in the result, which say when messages felt a fault.
export function faultSpans(resultFaults, events, end, windows) {
  if (resultFaults && resultFaults.length) {
    const found = new Map((windows || []).map((window) => [window.fault, window]));
    return resultFaults.map((fault) => ({ from: fault.began_us / 1e6, to: (fault.ended_us || end * 1e6) / 1e6, what: [fault.name, fault.target].filter(Boolean).join(" "), phases: phasesOf(fault, found.get(fault.fault)) }));
  }
  const found = new Map();
  for (const event of events) {
    if (event.phase === "begin") found.set(event.id, { from: event.t / 1e6, to: null, what: event.what, phases: [] });
    const span = found.get(event.id);
    if (!span) continue;
    if (event.phase === "end") span.to = event.t / 1e6;
    else if (event.phase !== "begin") span.phases.push([event.phase, event.t / 1e6]);
  }
  return [...found.values()].map((span) => ({ ...span, to: span.to ?? end }));
}

// A row for each fault; if there are many, one for each kind, without when they were detected.
export function faultRows(faults) {
  const kindOf = (fault) => fault.what.split(" ")[0];
  const drawn = (fault) => ({ ...fault, color: "--span-strong", text: fault.what });
  if (faults.length <= MOST_FAULT_ROWS) return faults.map((fault) => ({ label: kindOf(fault), spans: [drawn(fault)], phases: fault.phases }));
  const kinds = [...new Set(faults.map(kindOf))].slice(0, MOST_FAULT_ROWS);
  return kinds.map((kind) => ({ label: kind, spans: faults.filter((fault) => kindOf(fault) === kind).map(drawn) }));
}

// Of usage the processes that took the most CPU and memory at any time, in their old order.
export function busiest(usage, most) {
  const peak = (values) => values.reduce((high, value) => Math.max(high, value ?? 0), 0);
  const ranks = usage.names.map((_, row) => ({ row, cpu: peak(usage.cpu[row]), memory: peak(usage.memory[row]) }));
  ranks.sort((a, b) => b.cpu - a.cpu || b.memory - a.memory);
  const kept = new Set(ranks.slice(0, most).map((each) => each.row));
  const keep = (rows) => rows.filter((_, row) => kept.has(row));
  return { ...usage, names: keep(usage.names), cpu: keep(usage.cpu), memory: keep(usage.memory) };
}

// When a fault was detected and the system recovered, from its begin, and had drained, from its end.
function phasesOf(fault, window) {
  const { time_to_detect_us: detect, time_to_recover_us: recover, time_to_drain_us: drain } = window || {};
  const found = [["detected", detect, fault.began_us], ["recovered", recover, fault.began_us], ["drained", drain, fault.ended_us]];
  return found.filter(([, after, from]) => typeof after === "number" && typeof from === "number").map(([phase, after, from]) => [phase, (from + after) / 1e6]);
}

const STATE_COLORS = [
  [/dead|killed|failed|lost|parked|offline|fenced/, "--state-bad"],
  [/paus|wait|behind|start|stopp|unreach|slow/, "--state-warn"],
  [/lead/, "--state-lead"],
];

export function stateColor(state) {
  const found = STATE_COLORS.find(([pattern]) => pattern.test(state));
  return found ? found[1] : "--state-good";
}

// Rows of objects by state; an election is a mark where a leader or controller changes.
export function stateRows(logs, end) {
  const rows = [];
  for (const [part, log] of Object.entries(logs)) {
    const objects = new Map();
    for (const event of log.states) {
      if (/^partition /.test(event.object) && part !== "mirror") continue;
      if (!objects.has(event.object)) objects.set(event.object, []);
      objects.get(event.object).push(event);
    }
    for (const [object, events] of objects) {
      const spans = events.map((event, place) => ({
        from: event.t / 1e6,
        to: place + 1 < events.length ? events[place + 1].t / 1e6 : end,
        color: stateColor(event.state),
        text: event.state,
        reason: event.reason,
      }));
      const label = part === "run" || part === object ? object : `${part} ${object}`;
      rows.push({ label, spans, marks: [] });
    }
  }
  return rows.sort((a, b) => a.label.localeCompare(b.label, "en", { numeric: true })).slice(0, 40);
}

// When partitions got another leader, from the states of the clusters.
export function electionTimes(logs) {
  const found = [];
  for (const [part, log] of Object.entries(logs)) {
    const before = new Map();
    for (const event of log.states.filter((each) => /^partition /.test(each.object))) {
      const epoch = event.details ? event.details.epoch : undefined;
      // A change of the in-sync replicas alone is no election, nor is the first leader of a topic.
      const isElection = /^led by|lead|elect/.test(event.state) && (epoch === undefined || (before.has(event.object) && before.get(event.object) !== epoch));
      before.set(event.object, epoch);
      if (isElection) found.push({ t: event.t / 1e6, what: `${part === "run" ? "" : `${part} `}${event.object}: ${event.state}${event.reason ? `, ${event.reason}` : ""}` });
    }
  }
  return found;
}

// CPU (cores) and memory (bytes) by process, from the ticks of all parts, on one list of times.
export function usageSeries(logs) {
  const byName = new Map();
  for (const [part, log] of Object.entries(logs)) {
    for (const tick of log.ticks) {
      for (const usage of tick.processes) {
        const name = part === "run" || usage.name.startsWith(part) ? usage.name : `${part} ${usage.name}`;
        if (!byName.has(name)) byName.set(name, []);
        byName.get(name).push({ t: Math.round(tick.t / 1e6), exact: tick.t / 1e6, pid: usage.pid, cpu: usage.cpu_s, bytes: usage.resident_bytes });
      }
    }
  }
  const names = [...byName.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const times = [...new Set([...byName.values()].flatMap((samples) => samples.map((sample) => sample.t)))].sort((a, b) => a - b);
  const place = new Map(times.map((t, at) => [t, at]));
  const cpu = names.map(() => times.map(() => null));
  const memory = names.map(() => times.map(() => null));
  names.forEach((name, row) => {
    let before = null;
    for (const sample of byName.get(name)) {
      // A process that is ending has no memory any more.
      memory[row][place.get(sample.t)] = sample.bytes || null;
      const isSame = before && before.pid === sample.pid && sample.exact > before.exact && sample.cpu >= before.cpu;
      if (isSame) cpu[row][place.get(sample.t)] = (sample.cpu - before.cpu) / (sample.exact - before.exact);
      before = sample;
    }
  });
  fillGaps(times, cpu);
  fillGaps(times, memory);
  return { names, times, cpu, memory };
}

// Processes are sampled at times of their own: a value holds until the next one, if that is near.
function fillGaps(times, rows) {
  for (const row of rows) {
    let last = -1;
    for (let place = 0; place < row.length; place += 1) {
      if (row[place] === null) continue;
      if (last >= 0 && times[place] - times[last] <= LONGEST_GAP_S) row.fill(row[last], last + 1, place);
      last = place;
    }
  }
}

// The lanes of which the largest share is affected, over intended send time. The height of a span is
// the share of its messages with a finding.
export function laneRows(lanes, start) {
  const share = (lane) => shareOf(lane.affected, lane.due);
  return [...lanes].sort((a, b) => share(b) - share(a)).slice(0, MOST_LANES).map((lane) => ({
    label: `${lane.topic} ${lane.lane}`,
    lane,
    spans: lane.stretches.map(([from, to, due, affected], place) => ({ from: start + from / 1e6, to: start + endOf(lane.stretches, place, to) / 1e6, color: "--lane", share: shareOf(affected, due), affected, due })),
  }));
}

// A stretch ends at its last message. It is drawn up to the next one if that is as near as messages
// are to each other, so that only time without messages is a gap.
function endOf(stretches, place, to) {
  const [from, , due] = stretches[place];
  const next = place + 1 < stretches.length ? stretches[place + 1][0] : to;
  const step = due > 1 ? (to - from) / (due - 1) : 0;
  return next > to && next - to <= 2 * step ? next : to;
}

function shareOf(affected, due) {
  return due ? Math.min(1, affected / due) : Number(affected > 0);
}

// How far messages moved from their place, for each lane in which any did: the largest mean first.
export function listMovedLanes(lanes) {
  return (lanes || []).filter((lane) => lane.F > 0).map((lane) => ({
    name: `${lane.topic} ${lane.lane}`, sum: lane.F, pairs: lane.K || 0, delivered: lane.delivered || 0, reordered: lane.reordered || 0,
    mean: lane.delivered ? lane.F / lane.delivered : null, order: lane.F_limit ? lane.F / lane.F_limit : null,
  })).sort((a, b) => (b.mean ?? 0) - (a.mean ?? 0));
}

// The curve of one histogram over the whole run, while no stored curve exists.
export function curveOfBins(bins, phase) {
  const buckets = addBuckets(bins.latency);
  const percents = [1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100];
  const points = percents.map((percent) => [percent, percentile(buckets, percent)]).filter(([, value]) => typeof value === "number");
  const count = Object.values(buckets).reduce((sum, each) => sum + each, 0);
  return count ? [{ phase, count, never: 0, points }] : [];
}

// The range of latencies on a log scale, with a top row for what never arrives.
export function latencyRange(bins) {
  const used = Object.keys(addBuckets(bins.latency)).map(Number);
  const low = used.length ? bucketEnd(Math.min(...used) - 1) : 100;
  const high = used.length ? bucketEnd(Math.max(...used)) : 1e6;
  const top = Math.max(high, low * 8);
  const hasNever = bins.never.some((count) => count > 0);
  return { low: Math.max(1, low), high: top, limit: hasNever ? top * (top / low) ** 0.18 : top * 1.05, hasNever };
}
