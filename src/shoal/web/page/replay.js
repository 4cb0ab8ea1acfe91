// Replay of a run that has ended: what its events said at a moment. Pure. Times are seconds since
// the Unix epoch unless a name says otherwise.

import { addEvents, emptyLog } from "./series.js";

export const SPEEDS = [0.5, 1, 2, 5, 10, 60];

// The next position in seconds from the start; it stops at `length`.
export function advance(at, elapsedS, speed, length) {
  return Math.min(length, Math.max(0, at) + Math.max(0, elapsedS) * speed);
}

// A log as it was at that moment.
export function cutLog(log, moment) {
  const us = moment * 1e6;
  const events = [log.meta, ...log.ticks, ...log.faults, ...log.states, ...log.found, ...log.logs, log.end];
  return addEvents(emptyLog(), events.filter((event) => event && event.t <= us), true);
}

export function cutLogs(logs, moment) {
  return Object.fromEntries(Object.entries(logs).map(([part, log]) => [part, cutLog(log, moment)]));
}

// Bins with nothing in those that had not begun; their places stay, so that no axis moves.
export function cutBins(bins, moment) {
  const isPast = bins.times.map((t) => t - bins.seconds / 2 <= moment);
  const keep = (values, otherwise) => values.map((value, place) => (isPast[place] ? value : otherwise));
  return {
    ...bins,
    due: keep(bins.due, null), acknowledged: keep(bins.acknowledged, null), received: keep(bins.received, null),
    latency: keep(bins.latency, {}), never: keep(bins.never, 0),
  };
}

// Spans that had begun; one that had not ended ends at the moment.
export function cutSpans(spans, moment) {
  return spans.filter((span) => span.from <= moment).map((span) => ({ ...span, to: Math.min(span.to, moment), ...(span.phases ? { phases: span.phases.filter(([, t]) => t <= moment) } : {}) }));
}

export function cutRows(rows, moment) {
  return rows.map((row) => ({ ...row, spans: cutSpans(row.spans, moment) }));
}

// How many messages came how far, by a log of a run.
export function flowOfLog(log) {
  const tick = log && log.ticks[log.ticks.length - 1];
  if (!tick || tick.counters.sent === undefined) return [];
  const count = (name) => tick.counters[name] || 0;
  return [["sent", count("sent")], ["source", count("acknowledged")], ["received", count("received")]].map(([stage, value]) => ({ stage, count: value, lost: 0, copies: 0 }));
}
