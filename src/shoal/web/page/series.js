// Ticks as series: rates from counters, percentiles from histograms. Pure.

const BUCKETS_PER_OCTAVE = 16;

export function bucketEnd(bucket) {
  return 2 ** ((bucket + 1) / BUCKETS_PER_OCTAVE);
}

export function bucketStart(bucket) {
  return bucket === 0 ? 1 : 2 ** (bucket / BUCKETS_PER_OCTAVE);
}

export function addBuckets(histograms) {
  const total = {};
  for (const buckets of histograms) {
    for (const [bucket, count] of Object.entries(buckets)) total[bucket] = (total[bucket] || 0) + count;
  }
  return total;
}

// The upper end of the bucket with this percentile, by nearest rank. A message that never arrived
// is later than all others: "never" if the rank is among those, null without any message.
export function percentile(buckets, percent, never = 0) {
  const entries = Object.entries(buckets).map(([bucket, count]) => [Number(bucket), count]).sort((a, b) => a[0] - b[0]);
  const total = entries.reduce((sum, [, count]) => sum + count, 0) + never;
  if (!total) return null;
  const rank = Math.max(Math.ceil((total * Math.round(percent * 1000)) / 100000), 1);
  let reached = 0;
  for (const [bucket, count] of entries) {
    reached += count;
    if (reached >= rank) return bucketEnd(bucket);
  }
  return "never";
}

// Ticks in the order of their times, as charts need them: a clock that was set back writes earlier
// times later. The last one that was written stays the newest for everything else.
export function sortByTime(ticks) {
  return ticks.every((tick, place) => !place || ticks[place - 1].t <= tick.t) ? ticks : [...ticks].sort((a, b) => a.t - b.t);
}

// The rate of a counter between successive ticks; null where a tick lacks it or it was reset.
export function rates(ticks, name) {
  return ticks.map((tick, place) => {
    const before = place ? ticks[place - 1].counters[name] : undefined;
    const now = tick.counters[name];
    if (before === undefined || now === undefined || now < before) return null;
    const seconds = (tick.t - ticks[place - 1].t) / 1e6;
    return seconds > 0 ? (now - before) / seconds : null;
  });
}

export function lastRate(ticks, name, span = 5) {
  const recent = ticks.slice(-span - 1).filter((tick) => tick.counters[name] !== undefined);
  if (recent.length < 2) return null;
  const [first, last] = [recent[0], recent[recent.length - 1]];
  const seconds = (last.t - first.t) / 1e6;
  return seconds > 0 ? Math.max(0, last.counters[name] - first.counters[name]) / seconds : null;
}

// The first of these counters that the ticks have: clusters, mirrors and runs count other things.
export function findCounter(ticks, names) {
  const last = ticks[ticks.length - 1];
  return last ? names.find((name) => last.counters[name] !== undefined) : undefined;
}

// What a page keeps of one stream of events.
export function emptyLog() {
  return { ticks: [], faults: [], states: [], findings: {}, found: [], logs: [], end: null, meta: null };
}

export function addEvents(log, events, isStart) {
  const next = isStart ? emptyLog() : { ...log, ticks: [...log.ticks], faults: [...log.faults], states: [...log.states], findings: { ...log.findings }, found: [...log.found], logs: [...log.logs] };
  for (const event of events) {
    if (event.kind === "tick") next.ticks.push({ counters: {}, gauges: {}, histograms: {}, processes: [], partitions: [], ...event });
    else if (event.kind === "fault") next.faults.push(event);
    else if (event.kind === "state") next.states.push(event);
    else if (event.kind === "finding") { next.findings[event.finding] = event; next.found.push(event); }
    else if (event.kind === "log") next.logs.push(event);
    else if (event.kind === "end") next.end = event;
    else if (event.kind === "meta") { next.meta = event; next.end = null; }
  }
  return next;
}
