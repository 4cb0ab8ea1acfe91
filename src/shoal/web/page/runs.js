// A list of runs with their verdicts, in which a sweep is one entry: filter it, compare two.

import { html } from "./vendor.js";
import { chooseOne } from "./choices.js";
import { formatAge, formatCount, formatTime, formatUs, plural } from "./format.js";
import { FlowBar, Notes, Verdict } from "./parts.js";
import { buildAddress, replaceQuery } from "./router.js";

const VERDICTS = ["proven", "violated", "inconclusive", "none"];

// What a filter looks at.
export function textOf(entry) {
  return (entry.kind === "sweep" ? `${entry.name} ${describeSweep(entry)}` : `${entry.name} ${entry.sentence || ""}`).toLowerCase();
}

export function isOfVerdict(entry, verdict) {
  if (!verdict) return true;
  return entry.kind === "sweep" ? Boolean(entry.verdicts[verdict]) : (entry.verdict || "none") === verdict;
}

// One sentence on a sweep: what it varies, how far it came.
export function describeSweep(sweep) {
  const varied = Object.entries(sweep.parameters).map(([name, values]) => `${name} ${values.join(", ")}`).join(" × ");
  if (!sweep.planned) return `What it varies is not known; ${plural(sweep.done, "run")} ${sweep.done === 1 ? "is" : "are"} judged.`;
  const done = sweep.done >= sweep.planned ? `all ${plural(sweep.planned, "run")} are judged` : `${formatCount(sweep.done)} of ${plural(sweep.planned, "run")} are judged`;
  return `${varied}; ${done}.`;
}

export function Verdicts({ list, address, onMore }) {
  const { text = "", a, b } = address.query;
  const { value: verdict, notes } = chooseOne(address.query.verdict, VERDICTS, { what: "verdict", fallback: "all are shown" });
  const chosen = [a, b].filter(Boolean);
  const set = (changes) => replaceQuery(address, changes);
  const choose = (name) => {
    const next = chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen.slice(-1), name];
    set({ a: next[0], b: next[1] });
  };
  const shown = list.runs.filter((run) => isOfVerdict(run, verdict) && textOf(run).includes(text.toLowerCase()));
  return html`<${Notes} notes=${notes} /><div class="filter">
      <label>Filter <input type="search" value=${text} placeholder="name or sentence" onInput=${(event) => set({ text: event.target.value })} /></label>
      <label>Verdict <select value=${verdict} onChange=${(event) => set({ verdict: event.target.value })}>
        <option value="">all</option>${VERDICTS.map((word) => html`<option value=${word} selected=${word === verdict}>${word === "none" ? "not judged" : word}</option>`)}
      </select></label>
      ${chosen.length === 2 ? html`<a class="button" href=${buildAddress("compare", "", { a, b })}>Compare the two</a>` : html`<span class="quiet">Tick two runs to compare them.</span>`}
    </div>
    <ol class="runs">${shown.map((run) => run.kind === "sweep" ? html`<${SweepRow} key=${run.name} sweep=${run} />` : html`<${RunRow} key=${run.name} run=${run} isChosen=${chosen.includes(run.name)} onChoose=${() => choose(run.name)} />`)}</ol>
    ${shown.length ? null : html`<p class="quiet">No run matches.</p>`}
    ${list.total > list.runs.length ? html`<button type="button" onClick=${onMore}>Show more of ${plural(list.total, "run")}</button>` : null}`;
}

function RunRow({ run, isChosen, onChoose }) {
  const numbers = run.numbers;
  const ageS = Date.now() / 1000 - run.started_us / 1e6;
  return html`<li class="run">
    <div class="head">
      <${Verdict} word=${run.verdict} />
      <h3><a href=${buildAddress("run", run.name)}>${run.run}</a></h3>
      <span class="quiet" title=${formatTime(run.started_us)}>${run.state}${run.started_us ? `, ${formatAge(ageS)} ago` : ""}</span>
      <label class="choose"><input type="checkbox" checked=${isChosen} onChange=${onChoose} aria-label=${`compare ${run.run}`} /> compare</label>
    </div>
    <p class="sentence">${run.sentence || "Not judged yet."}</p>
    ${numbers ? html`<div class="numbers">
      <${FlowBar} flow=${numbers.flow} />
      <dl>${[["lost", numbers.lost], ["duplicated", numbers.duplicated], ["reordered", numbers.reordered]].map(([name, value]) => html`<div class=${value ? "bad" : ""}><dt>${name}</dt><dd>${formatCount(value)}</dd></div>`)}
        <div><dt>p99</dt><dd>${formatUs(numbers.p99_us)}</dd></div>
        ${run.thresholds ? html`<div class=${run.missed.length ? "bad" : ""}><dt>thresholds</dt><dd>${run.missed.length ? `${run.missed.length} of ${run.thresholds} missed` : `${run.thresholds} met`}</dd></div>` : null}
      </dl></div>` : null}
  </li>`;
}

function SweepRow({ sweep }) {
  return html`<li class="run">
    <div class="head">
      ${Object.entries(sweep.verdicts).map(([word, count]) => html`<span>${formatCount(count)} <${Verdict} word=${word === "none" ? null : word} /></span>`)}
      <h3><a href=${buildAddress("sweep", sweep.name)}><span class="kind">sweep</span> ${sweep.name}</a></h3>
      <span class="quiet" title=${formatTime(sweep.started_us)}>${sweep.state}${sweep.started_us ? `, ${formatAge(Date.now() / 1000 - sweep.started_us / 1e6)} ago` : ""}</span>
    </div>
    <p class="sentence">${describeSweep(sweep)}</p>
  </li>`;
}
