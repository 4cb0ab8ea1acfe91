// Home: what runs now, and the verdicts of all runs.

import { html, useEffect, useState } from "./vendor.js";
import { getJson, postJson } from "./api.js";
import { Disconnected, NowCards, useNow } from "./now.js";
import { Problem } from "./parts.js";
import { Verdicts } from "./runs.js";

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
    ${isEmpty && now.isConnected === false ? html`<${Disconnected} />` : null}
    ${isEmpty ? html`<${Empty} starts=${starts} folder=${list.folder} level="h2" />` : html`
      <section aria-labelledby="now"><h2 id="now">Now</h2><${NowCards} state=${now} /></section>
      <section aria-labelledby="verdicts"><h2 id="verdicts">Verdicts</h2>
        ${!list ? html`<p class="quiet">Loading…</p>`
          : list.runs.length ? html`<${Verdicts} list=${list} address=${address} onMore=${() => setCount(count + PAGE_SIZE)} />`
            : html`<${Empty} starts=${starts} folder=${list.folder} level="h3" />`}
      </section>
      ${starts && starts.allow_actions ? html`<section class="acts" aria-labelledby="start"><h2 id="start">Start a run</h2><${StartForm} starts=${starts} /></section>` : null}`}
  </main>`;
}

// Without any run: three ways to begin.
function Empty({ starts, folder, level }) {
  const ways = [
    ["See it work", "What acks=1 loses when a leader dies; then a mirror that copies everything, and one that loses a message.", "shoal demo", null],
    ["Test a mirror", "Does a mirror lose, repeat, reorder or delay anything?", "shoal run mirror-correctness", "mirror-correctness"],
    ["Kill a broker", "A leader of the source dies under a mirror, and comes back.", "shoal run source-broker-killed", "source-broker-killed"],
  ];
  return html`<p>There are no runs in <code>${folder}</code> yet. Three ways to begin:</p>
    <ul class="cards">${ways.map(([title, text, command, preset]) => html`<li class="card">
      <${level}>${title}</${level}><p>${text}</p>
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
  return html`<span class="acts"><button type="button" onClick=${start}>${label}</button> <span role="status">${state}</span></span>`;
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
