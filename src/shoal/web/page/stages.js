// What belongs to one stage of the flow: findings, lanes, faults, rates, states and processes. Pure.

export const STAGES = ["sent", "source", "mirror", "target", "received"];

const STAGE_FINDINGS = {
  sent: /reused|unexpected/,
  source: /never-stored|^lost: expired$|source|superseded|torn|inconsistent/,
  mirror: /not-mirrored|altered|corrupted|unreadable|batch/,
  target: /target|superseded|vanished/,
  received: /undelivered|unlocated|pending|poll|reordered$| read$|tail/,
};
const STAGE_PARTS = { sent: /\bproducer/, source: /\bsource\b/, mirror: /\bmirror\b/, target: /\btarget\b/, received: /\bconsumer/ };
const STAGE_RATES = { sent: ["due"], source: ["acknowledged"], mirror: [], target: [], received: ["received"] };
const STAGE_ROWS = {
  sent: ["producer_to_source"], source: ["producer_to_source"], mirror: ["source_to_target"],
  target: ["source_to_target", "log_to_consumers"], received: ["log_to_consumers"],
};

// Without a stage everything belongs.
export function isFindingOf(stage, finding) {
  return !stage || STAGE_FINDINGS[stage].test(finding);
}

export function isPartOf(stage, text) {
  return !stage || STAGE_PARTS[stage].test(text);
}

export function isRateOf(stage, name) {
  return !stage || STAGE_RATES[stage].includes(name);
}

export function isRowOf(stage, name) {
  return !stage || STAGE_ROWS[stage].includes(name);
}

// Lanes with a finding of the stage.
export function lanesOf(stage, lanes) {
  return stage ? lanes.filter((lane) => Object.keys(lane.findings).some((finding) => isFindingOf(stage, finding))) : lanes;
}

// Logs whose states and processes are those of the stage.
export function logsOf(stage, logs) {
  if (!stage) return logs;
  return Object.fromEntries(Object.entries(logs).map(([part, log]) => [part, {
    ...log,
    states: log.states.filter((event) => isPartOf(stage, `${part} ${event.object}`)),
    ticks: log.ticks.map((tick) => ({ ...tick, processes: tick.processes.filter((usage) => isPartOf(stage, `${part === "run" ? "" : part} ${usage.name}`)) })),
  }]));
}
