// What a page follows of one cluster or mirror, and the buttons that act on it.

import { html, useEffect, useState } from "./vendor.js";
import { getJson, openStream, postJson } from "./api.js";
import { formatAge } from "./format.js";
import { Problem } from "./parts.js";
import { addEvents, emptyLog } from "./series.js";

export const PAGE_ROWS = 100;
const MOST_TICKS = 900;
const SILENT_S = 5;

const UNKNOWN_THING = { thing: null, log: emptyLog(), partitions: {}, problem: "", isConnected: null, isAlive: false, ageS: 0 };

// Loads a thing and follows it; a file that was thinned meanwhile is loaded again.
export function useThing(id) {
  const [state, setState] = useState(UNKNOWN_THING);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isGone = false;
    let close = () => null;
    getJson(`overview?thing=${encodeURIComponent(id)}`).then((found) => {
      if (isGone) return;
      setState((old) => ({ ...old, thing: found.thing, log: addEvents(emptyLog(), found.events, true), partitions: byName(found.partitions), isAlive: found.thing.is_alive, problem: "" }));
      close = openStream({
        positions: { [id]: found.position },
        onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
        onMessage: (kind, content) => {
          if (kind === "events" && content.is_start) setRound((old) => old + 1);
          else setState((old) => (kind === "events" ? withEvents(old, content.events) : withThings(old, id, content)));
        },
      });
      if (isGone) close();
    }, (error) => setState((old) => ({ ...old, problem: error.message })));
    return () => { isGone = true; close(); };
  }, [id, round]);
  return state;
}

function byName(entries) {
  return Object.fromEntries(entries.map((entry) => [entry.partition, entry]));
}

function withEvents(old, events) {
  const log = addEvents(old.log, events, false);
  log.ticks = log.ticks.slice(-MOST_TICKS);
  const changed = events.filter((event) => event.kind === "tick").flatMap((event) => event.partitions || []);
  return { ...old, log, partitions: changed.length ? { ...old.partitions, ...byName(changed) } : old.partitions };
}

function withThings(old, id, content) {
  const found = content.things.find((thing) => thing.id === id);
  return { ...old, isConnected: true, isAlive: Boolean(found), ageS: found ? Math.max(0, (content.now_us - found.written_us) / 1e6) : old.ageS };
}

// Whether the server lets this page act.
export function useActions() {
  const [isAllowed, setAllowed] = useState(false);
  useEffect(() => { getJson("starts").then((starts) => setAllowed(starts.allow_actions), () => null); }, []);
  return isAllowed;
}

// "Disconnected", "has ended" or how old the data is.
export function DataAge({ state }) {
  if (state.isConnected === false) return html`<${Problem} text="Disconnected: shoal serve does not answer. What you see is old; this page tries again." />`;
  if (!state.isAlive) return html`<p class="age stale">It does not run any more. This is what it wrote last.</p>`;
  const isSilent = state.ageS > SILENT_S;
  return html`<p class=${isSilent ? "age stale" : "age"}>${isSilent ? `no data for ${formatAge(state.ageS)}` : `data ${formatAge(state.ageS)} old`}</p>`;
}

// A button for one action, and what became of it.
export function ActionButton({ body, label, title, isDangerous, done = "" }) {
  const [state, setState] = useState({ isBusy: false, problem: "", text: "" });
  const act = () => {
    setState({ isBusy: true, problem: "", text: "" });
    postJson("actions", body).then(() => setState({ isBusy: false, problem: "", text: done }), (error) => setState({ isBusy: false, problem: error.message, text: "" }));
  };
  return html`<span class="action"><button type="button" class=${isDangerous ? "danger" : ""} disabled=${state.isBusy} title=${title} aria-label=${title} onClick=${act}>${state.isBusy ? `${label}…` : label}</button>
    ${state.text ? html` <span role="status">${state.text}</span>` : null}
    ${state.problem ? html`<span class="problem" role="alert">${state.problem}</span>` : null}</span>`;
}

// The last state of each object whose name begins with one of these words.
export function currentStates(log, words) {
  const last = new Map();
  // States from before its last start may be of objects that no longer exist.
  const start = log.meta ? log.meta.t : 0;
  for (const event of log.states) {
    if (event.t >= start && words.some((word) => event.object.startsWith(`${word} `))) last.set(event.object, event);
  }
  return [...last.values()].filter((event) => event.state !== "removed");
}

export function compareNames(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}
