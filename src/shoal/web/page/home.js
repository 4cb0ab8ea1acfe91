// Home: what runs now, and the verdicts of all runs.

import { html, useEffect, useState } from "./vendor.js";
import { getJson, postJson } from "./api.js";
import { formatAge, formatCount, formatTime, formatUs, plural } from "./format.js";
import { NowCards, useNow } from "./now.js";
import { FlowBar, Problem, Verdict } from "./parts.js";
import { buildAddress, replaceQuery } from "./router.js";

const PAGE_SIZE = 50;

export function Home({ address }) {
  const now = useNow();
  const [list, setList] = useState(null);
  const [starts, setStarts] = useState(null);
  const [problem, setProblem] = useState("");
  const [count, setCount] = useState(PAGE_SIZE);
  // A run that begins or ends changes the list.
  const running = now.things.map((thing) => thing.id).join();
  useEffect(() => {
    getJson(`runs?count=${count}`).then(setList, (error) => setProblem(error.message));
    getJson("starts").then(setStarts, () => null);
  }, [running, count]);
  const isEmpty = list && !list.runs.length && !now.things.length;
  return html`<main>
    <h1>Shoal</h1>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${isEmpty ? html`<${Empty} starts=${starts} folder=${list.folder} />` : html`
      <section aria-labelledby="now"><h2 id="now">Now</h2><${NowCards} state=${now} /></section>
      <section aria-labelledby="verdicts"><h2 id="verdicts">Verdicts</h2>
        ${list ? html`<${Verdicts} list=${list} address=${address} onMore=${() => setCount(count + PAGE_SIZE)} />` : html`<p class="quiet">Loading…</p>`}
      </section>
      ${starts && starts.allow_actions ? html`<section aria-labelledby="start"><h2 id="start">Start a run</h2><${StartForm} starts=${starts} /></section>` : null}`}
  </main>`;
}

// Without any run: three ways to begin.
function Empty({ starts, folder }) {
  const ways = [
    ["See it work", "Two clusters, a mirror, and a mirror that loses one message.", "shoal demo", null],
    ["Test a mirror", "Does a mirror lose, repeat, reorder or delay anything?", "shoal run mirror-correctness", "mirror-correctness"],
    ["Kill a broker", "A leader of the source dies under a mirror, and comes back.", "shoal run source-broker-killed", "source-broker-killed"],
  ];
  return html`<p>There are no runs in <code>${folder}</code> yet. Three ways to begin:</p>
    <ul class="cards">${ways.map(([title, text, command, preset]) => html`<li class="card">
      <h2>${title}</h2><p>${text}</p>
      <p><code>${command}</code></p>
      ${starts && starts.allow_actions && preset ? html`<${StartButton} body=${{ kind: "preset", name: preset, settings: {} }} label=${`Start ${preset}`} />` : html`<${CopyButton} text=${command} />`}
    </li>`)}</ul>
    ${starts && !starts.allow_actions ? html`<p class="quiet">With <code>shoal serve --allow-actions</code> this page can start runs.</p>` : null}`;
}

function CopyButton({ text }) {
  const [label, setLabel] = useState("Copy the command");
  const copy = () => navigator.clipboard.writeText(text).then(() => setLabel("Copied"), () => setLabel("Copy it by hand"));
  return html`<button type="button" onClick=${copy}>${label}</button>`;
}

function StartButton({ body, label }) {
  const [state, setState] = useState("");
  const start = () => postJson("starts", body).then(() => setState("Started; it appears under Now."), (error) => setState(error.message));
  return html`<button type="button" onClick=${start}>${label}</button> <span role="status">${state}</span>`;
}

function StartForm({ starts }) {
  const [chosen, setChosen] = useState(0);
  const [values, setValues] = useState({});
  const experiment = starts.experiments[chosen];
  const settings = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
  return html`<div class="start">
    <label>Experiment <select value=${chosen} onChange=${(event) => setChosen(Number(event.target.value))}>
      ${starts.experiments.map((each, place) => html`<option value=${place}>${each.name}${each.kind === "file" ? " (file)" : ""}</option>`)}
    </select></label>
    <p class="quiet">${experiment.description}</p>
    <div class="settings">${starts.settings.map((setting) => html`<label>${setting.label}
      ${setting.choices.length
        ? html`<select onChange=${(event) => setValues({ ...values, [setting.key]: event.target.value })}><option value="">as in the file</option>${setting.choices.map((choice) => html`<option>${choice}</option>`)}</select>`
        : html`<input type="number" min=${setting.least} max=${setting.most} placeholder="as in the file" onInput=${(event) => setValues({ ...values, [setting.key]: event.target.value })} />`}
    </label>`)}</div>
    <p><${StartButton} body=${{ kind: experiment.kind, name: experiment.name, settings }} label=${`Start ${experiment.name}`} />
      ${starts.is_running ? html` <${StopButton} />` : null}</p>
    ${starts.error ? html`<pre class="problem">${starts.error}</pre>` : null}
  </div>`;
}

export function StopButton() {
  const [state, setState] = useState("");
  const stop = () => postJson("starts/stop", {}).then(() => setState("It drains and is judged."), (error) => setState(error.message));
  return html`<button type="button" onClick=${stop}>Stop the run</button> <span role="status">${state}</span>`;
}

function Verdicts({ list, address, onMore }) {
  const { text = "", verdict = "", a, b } = address.query;
  const chosen = [a, b].filter(Boolean);
  const set = (changes) => replaceQuery(address, changes);
  const choose = (name) => {
    const next = chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen.slice(-1), name];
    set({ a: next[0], b: next[1] });
  };
  const shown = list.runs.filter((run) => (!verdict || (run.verdict || "none") === verdict) && `${run.name} ${run.sentence || ""}`.toLowerCase().includes(text.toLowerCase()));
  return html`<div class="filter">
      <label>Filter <input type="search" value=${text} placeholder="name or sentence" onInput=${(event) => set({ text: event.target.value })} /></label>
      <label>Verdict <select value=${verdict} onChange=${(event) => set({ verdict: event.target.value })}>
        <option value="">all</option>${["proven", "violated", "inconclusive", "none"].map((word) => html`<option value=${word}>${word === "none" ? "not judged" : word}</option>`)}
      </select></label>
      ${chosen.length === 2 ? html`<a class="button" href=${buildAddress("compare", "", { a, b })}>Compare the two</a>` : html`<span class="quiet">Tick two runs to compare them.</span>`}
    </div>
    <ol class="runs">${shown.map((run) => html`<${RunRow} key=${run.name} run=${run} isChosen=${chosen.includes(run.name)} onChoose=${() => choose(run.name)} />`)}</ol>
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
