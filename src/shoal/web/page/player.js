// The controls of a replay: play, pause, speed, and a slider over the run.

import { html, useEffect, useState } from "./vendor.js";
import { describeThing } from "./now.js";
import { SPEEDS, advance } from "./replay.js";

const STEP_MS = 100;

// Where a replay stands, in seconds from the start; null for the end. `chosen` is what the address
// says, `keep(at)` writes it there: when it pauses, not at each step.
export function useReplay(chosen, length, keep) {
  const [state, setState] = useState({ at: null, isPlaying: false, speed: 1 });
  const { isPlaying, speed } = state;
  const at = state.at ?? chosen;
  useEffect(() => {
    if (!isPlaying) return undefined;
    let before = performance.now();
    const timer = setInterval(() => {
      const now = performance.now();
      const elapsedS = (now - before) / 1000;
      before = now;
      setState((old) => ({ ...old, at: advance(old.at ?? 0, elapsedS, old.speed, length) }));
    }, STEP_MS);
    return () => clearInterval(timer);
  }, [isPlaying, length]);
  const seek = (next) => { setState({ ...state, at: null, isPlaying: false }); keep(next === null || next >= length ? null : next); };
  useEffect(() => { if (isPlaying && at >= length) seek(null); }, [isPlaying, at >= length]);
  return {
    at, isPlaying, speed, length, seek,
    drag: (next) => setState({ ...state, at: next, isPlaying: false }),
    toggle: () => (isPlaying ? seek(at) : setState({ ...state, at: at ?? 0, isPlaying: true })),
    setSpeed: (next) => setState({ ...state, speed: next }),
  };
}

export function Player({ replay, log }) {
  const { at, isPlaying, speed, length } = replay;
  const value = at ?? length;
  return html`<div class="player" role="group" aria-label="Replay">
    <button type="button" onClick=${replay.toggle}>${isPlaying ? "Pause" : at === null ? "Replay" : "Play"}</button>
    <label>Speed <select value=${speed} onChange=${(event) => replay.setSpeed(Number(event.target.value))}>${SPEEDS.map((each) => html`<option value=${each} selected=${each === speed}>${each}×</option>`)}</select></label>
    <label class="moment">Moment <input type="range" min="0" max=${length.toFixed(1)} step="0.1" value=${value.toFixed(1)} aria-valuetext=${`${value.toFixed(1)} s of ${length.toFixed(1)} s`}
      onInput=${(event) => replay.drag(Number(event.target.value))} onChange=${(event) => replay.seek(Number(event.target.value))} /></label>
    <span class="quiet at">${value.toFixed(1)} s of ${length.toFixed(1)} s</span>
    ${at === null ? null : html`<button type="button" onClick=${() => replay.seek(null)}>Show the end</button>
      <p class="sentence">${describeThing({ subject: "run" }, log)}</p>`}
  </div>`;
}
